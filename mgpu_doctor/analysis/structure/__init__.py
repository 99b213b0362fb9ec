"""How the ranks of a job depend on each other, and the work that each gets."""
