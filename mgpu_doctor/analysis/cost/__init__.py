"""What a step would take if."""
