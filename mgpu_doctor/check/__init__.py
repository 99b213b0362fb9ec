"""What this machine lets the doctor see, and how to let it see more."""
