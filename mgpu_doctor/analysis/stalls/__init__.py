"""Analysis of occasional stalls of ranks."""
