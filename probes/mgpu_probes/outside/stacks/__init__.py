"""Stacks of a process's threads, and what the kernel says the process waits for."""
