"""Property tests search the same examples every time; to search new ones:
`pytest --hypothesis-profile=search`."""

from hypothesis import HealthCheck, settings

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure of a test."""
settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("search", UNTIMED, derandomize=False)
settings.load_profile("same")
