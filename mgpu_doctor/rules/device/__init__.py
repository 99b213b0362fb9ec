"""How the GPUs are used."""
