"""Traces of ranks that run, asked for from outside: by our own probe in them, or by Kineto's."""
