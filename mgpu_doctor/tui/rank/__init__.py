"""One rank: chosen in the panel of ranks, and its page."""
