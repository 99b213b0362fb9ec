"""Rules for ranks that wait for data."""
