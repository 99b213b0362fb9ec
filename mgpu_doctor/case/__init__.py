"""The typed facts of one job, loaded from a recording, a running process or files."""
