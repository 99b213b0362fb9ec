"""What can be observed on this machine, and how to observe more."""
