"""Collectives of each rank: torch's flight recorder (files and live jobs) and NCCL's RAS."""
