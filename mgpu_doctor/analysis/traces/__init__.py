"""Measures from profiler traces: pure functions of columns of events."""
