"""What surrounds a rank on its host while it works."""
