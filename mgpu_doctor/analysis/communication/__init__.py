"""What data that moves costs, and how gradients are exchanged."""
