"""Property tests search the same examples every time; to search new ones:
`pytest --hypothesis-profile=search`."""

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")
