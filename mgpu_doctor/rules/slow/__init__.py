"""Ranks that keep the others waiting, in each step or now and then."""
