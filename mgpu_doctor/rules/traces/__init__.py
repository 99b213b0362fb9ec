"""Rules based on profiler traces."""
