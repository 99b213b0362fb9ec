"""What was sampled until now, bounded in memory."""
