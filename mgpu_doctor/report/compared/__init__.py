"""A comparison of runs as text, JSON, Markdown or a page."""
