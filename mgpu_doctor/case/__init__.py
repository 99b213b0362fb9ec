"""The typed facts of one job, loaded from a recording (later also from a pid or from files)."""
