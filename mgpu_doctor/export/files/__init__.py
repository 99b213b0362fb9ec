"""A recording's steps as files for other programs: made line by line, so that none is too large."""
