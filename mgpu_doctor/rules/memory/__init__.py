"""Rules for memory that ran out, will run out, or is unused."""
