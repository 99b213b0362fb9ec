"""The job stands: who is waited for."""
