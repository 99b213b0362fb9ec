"""Rules for jobs that hang: which rank the others wait for."""
