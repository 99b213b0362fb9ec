"""Profiler traces: taking them from running ranks, and reading them as NumPy columns."""
