"""Turns what the user names into cases: finds the job, and samples it if it is running."""
