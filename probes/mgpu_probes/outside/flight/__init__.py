"""torch's flight recorder: what each rank's collectives were, from files and from live jobs."""
