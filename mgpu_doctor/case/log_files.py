"""Which files are meant by what the user names: logs themselves, and folders of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILES = 20_000
MOST_DEPTH = 6

_LOG = re.compile(
    r"(?:\.(?:log|out|err|txt|stdout|stderr)|(?:^|[-_.])std(?:out|err)|^[\w-]+)"
    r"(?:[.-]\d{1,8})?(?:\.(?:gz|bz2|xz))?$"
)
"""Names of logs in a folder, also rotated and compressed ones: a folder holds other things, too."""


def log_files(subjects: Sequence[str]) -> list[str]:
    """The files, each once, in the order named; those of a folder by their names."""
    found = dict.fromkeys(name for subject in subjects for name in _files(subject))
    return list(found)[:MOST_FILES]


def _files(subject: str) -> Iterator[str]:
    if not os.path.isdir(subject):
        yield subject
        return
    yield from sorted(_inside(Path(subject), 0), key=_natural)


def _inside(folder: Path, depth: int) -> Iterator[str]:
    """Regular files alone; no links are followed, nothing hidden is read."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth < MOST_DEPTH:
                yield from _inside(Path(entry.path), depth + 1)
        elif entry.is_file(follow_symlinks=False) and _LOG.search(entry.name):
            yield entry.path


def _natural(name: str) -> list[tuple[str, int]]:
    """`rank_2` before `rank_10`."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d{0,18})", name)]
