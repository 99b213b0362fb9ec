"""Trainers of PyTorch: each file here is a strategy, what they share is in `common`."""
