"""Where the threads of a process stand, and what the kernel says it waits for."""
