"""What happened to a job and its machine, in sentences: for the live screen and for the report."""
