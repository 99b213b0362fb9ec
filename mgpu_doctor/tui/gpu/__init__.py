"""One GPU: chosen in the panel of GPUs, and its page."""
