"""The memory of a running job: growth, pressure, long batches, and what the peak is made of."""
