"""Step times that a change would give, and the cost of communication. Pure."""
