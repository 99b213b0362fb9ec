"""From what the user names to a case: which job is meant, and how long to sample a running one."""
