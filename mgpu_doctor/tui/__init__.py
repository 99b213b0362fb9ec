"""The live screen. Widgets only read frozen snapshots."""
