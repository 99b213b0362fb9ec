"""From what a user names to a case: which job is meant, how long to look at one that runs."""
