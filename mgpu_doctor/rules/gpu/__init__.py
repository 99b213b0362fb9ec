"""Rules about GPUs: how they are used, and what is wrong with them or with what connects them."""
