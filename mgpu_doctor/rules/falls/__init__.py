"""What ended the job: who fell first, and why."""
