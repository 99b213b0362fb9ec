"""Flight-recorder dumps compared: where ranks' collectives diverge, and which ranks wait."""
