"""What the doctor sees as OpenMetrics, for Prometheus: frame → families → text → server."""
