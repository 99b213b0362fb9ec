"""Treatments: changes to the settings of a training job, applied without a change to its script."""
