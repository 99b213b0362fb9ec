"""Rules about GPUs that are broken, slowed down or badly placed, each tied to the rank there."""
