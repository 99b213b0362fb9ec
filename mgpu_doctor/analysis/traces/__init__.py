"""What profiler traces tell: pure functions, columns of events in, measures out."""
