"""Which ranks slow down the others in every step, and why."""
