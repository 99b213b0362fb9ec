"""The live screen. Widgets see frozen snapshots alone."""
