"""Which files are meant by what the user names: logs themselves, and folders of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mgpu_probes.outside.untrusted_files import entries_below

MOST_FILES = 20_000
MOST_DEPTH = 6

_LOG = re.compile(
    r"(?:\.(?:log|out|err|txt|stdout|stderr)|(?:^|[-_.])std(?:out|err)|^[\w-]+)"
    r"(?:[.-]\d{1,8})?(?:\.(?:gz|bz2|xz))?$"
)
"""Names of logs in a folder, also rotated and compressed ones: a folder holds other things, too."""


def log_files(subjects: Sequence[str]) -> dict[str, Path | None]:
    """The files, each once, in the order named, those of a folder by their names; and the folder
    that the user named, None: the file itself."""
    found: dict[str, Path | None] = {}
    for subject in subjects:
        if os.path.isdir(subject):
            folder = Path(subject)
            for name in sorted(_inside(folder, folder, 0), key=_natural):
                found.setdefault(name, folder)
        else:
            found[subject] = None
    return dict(list(found.items())[:MOST_FILES])


def _inside(root: Path, folder: Path, depth: int) -> Iterator[str]:
    """Regular files alone; no links are followed, nothing hidden is read."""
    for entry in entries_below(root, folder):
        if entry.name.startswith("."):
            continue
        if entry.is_folder and depth < MOST_DEPTH:
            yield from _inside(root, entry.path, depth + 1)
        elif entry.is_file and _LOG.search(entry.name):
            yield str(entry.path)


def _natural(name: str) -> list[tuple[str, int]]:
    """`rank_2` before `rank_10`."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d{0,18})", name)]
