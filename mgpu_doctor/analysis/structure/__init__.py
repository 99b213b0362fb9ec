"""How the ranks of a job depend on each other, and what each was given."""
