"""What is asked of one rank only while its page is open: what it prints, and where it stands."""
