"""The state of a job now, or at a moment of a recording, frozen into frames for screens."""
