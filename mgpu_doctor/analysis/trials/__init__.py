"""Trials of treatments: what a run measured, and whether a treatment helps. Pure."""
