"""What a report for strangers leaves out: addresses, and names of hosts and users."""
