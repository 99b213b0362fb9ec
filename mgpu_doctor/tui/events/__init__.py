"""What happened to a job, newest first."""
