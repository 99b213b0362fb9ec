"""Probes: each reads one source and writes facts; none judges."""
