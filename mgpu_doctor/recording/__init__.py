"""A run's folder: its layout, writing it, reading it live or afterwards."""
