"""Rules for communication that takes time although no rank is late."""
