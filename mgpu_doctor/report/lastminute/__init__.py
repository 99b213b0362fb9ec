"""The last minute before the end, rank by rank."""
