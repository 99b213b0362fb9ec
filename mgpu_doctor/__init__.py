"""mgpu-doctor: which rank, why, the evidence, the fix and what it will gain."""

__version__ = "0.1.0"
