"""Rules: pure functions from measures to findings. One package per family."""
