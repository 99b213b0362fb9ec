"""Treatments: changes that can be tried on a job, declared by name."""
