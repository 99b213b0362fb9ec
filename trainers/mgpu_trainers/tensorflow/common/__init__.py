"""What the strategies share: one training loop and what it is made of."""
