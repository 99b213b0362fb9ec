"""Memory that grows, and what is left of it."""
