"""Pure functions: arrays in, measures out. No I/O, no clock."""
