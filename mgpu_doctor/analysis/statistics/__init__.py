"""When numbers differ, and when they come back: tests that know what noise does."""
