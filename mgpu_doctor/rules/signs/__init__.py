"""What console text tells."""
