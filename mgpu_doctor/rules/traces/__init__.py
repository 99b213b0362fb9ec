"""What profiler traces tell."""
