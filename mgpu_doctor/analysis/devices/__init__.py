"""How the GPUs did, which rank is on which, and how they reach each other."""
