"""Waiting for the network although nobody is late."""
