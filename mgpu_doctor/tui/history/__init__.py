"""What was seen over time, as graphs. A gap stays a gap: nothing here interpolates."""
