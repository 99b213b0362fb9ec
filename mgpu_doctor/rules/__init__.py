"""Rules: pure functions from measures to findings. One file a family."""
