"""Memory that ran out, will run out, or lies unused."""
