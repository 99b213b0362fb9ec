"""Runs side by side: what differs beyond noise, how well more ranks pay, what still more would."""
