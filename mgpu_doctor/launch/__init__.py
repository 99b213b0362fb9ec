"""Starts commands under observation."""
