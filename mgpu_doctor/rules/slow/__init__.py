"""Rules for ranks that slow down the others, in every step or in some steps."""
