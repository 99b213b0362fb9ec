"""The agent that runs on each host of a job: standard library alone, sent over the channel."""
