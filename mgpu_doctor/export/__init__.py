"""Exports what the doctor observes as OpenMetrics for Prometheus: frame → families → text →
server."""
