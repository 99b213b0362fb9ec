"""Full screens and pages that keys open over the main screen."""
