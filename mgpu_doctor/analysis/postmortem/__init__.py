"""How jobs fail: which rank failed first, which failures only follow from it, and why."""
