"""What flight recorders tell when they are laid side by side: where ranks' collectives part."""
