"""Runs side by side: what differs beyond noise, and how well more ranks pay off."""
