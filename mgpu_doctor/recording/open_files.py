"""The limit of files that this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def allow_open_files(wanted: int) -> int:
    """Raises the limit of open files as far as needed and possible; how many may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
