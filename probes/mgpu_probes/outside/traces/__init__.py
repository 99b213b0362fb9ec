"""Traces of PyTorch's profiler (Kineto, Chrome's trace-event JSON), as NumPy columns."""
