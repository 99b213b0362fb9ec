"""Who holds the others up, step after step, and what explains it."""
