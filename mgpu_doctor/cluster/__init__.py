"""Jobs on several hosts: an agent on each, started over the user's own exec channel."""
