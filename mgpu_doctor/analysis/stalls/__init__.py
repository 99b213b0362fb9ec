"""What holds the ranks up now and then."""
