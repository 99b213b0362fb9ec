"""Rules for failed jobs: they word what the post-mortem analysis found."""
