"""Trials of treatments: runs the job for some steps with and without each, and says what helps."""
