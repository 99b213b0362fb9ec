"""What is going on now, or went on at a moment of a recording, frozen into frames for screens."""
