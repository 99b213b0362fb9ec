"""Waiting for data."""
