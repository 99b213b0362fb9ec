"""Hides names of hosts and users, and addresses, in text that will be published."""
