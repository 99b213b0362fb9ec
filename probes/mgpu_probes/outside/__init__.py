"""Reads facts about a job from outside its processes: one source per module, no judgement."""
