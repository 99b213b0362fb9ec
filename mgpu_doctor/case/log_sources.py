"""The log files that a user names, and the ranks that wrote their lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside.logs.log_files import ranks_from_names
from mgpu_probes.outside.logs.scanned_logs import Scanned
from mgpu_probes.outside.untrusted_files import entries_below

MOST_FILES = 20_000
MOST_DEPTH = 6

MOST_KINDS = 12
"""Kinds of folders of one job: a launcher makes one for each host, attempt, rank and stream."""
_WITH_A_NUMBER = re.compile(r"[^/]*\d[^/]*")
_LOG = re.compile(
    r"(?:\.(?:log|out|err|txt|stdout|stderr)|(?:^|[-_.])std(?:out|err)|^[\w-]+)"
    r"(?:[.-]\d{1,8})?(?:\.(?:gz|bz2|xz))?$"
)
"""Names of logs in a folder, also rotated and compressed ones: a folder holds other things, too."""


def log_files(subjects: Sequence[str]) -> dict[str, Path | None]:
    """The files, each once, in the order named, those of a folder by their names; and the folder
    that the user named, None: the file itself."""
    paths: dict[str, Path | None] = {}
    for subject in subjects:
        if os.path.isdir(subject):
            folder = Path(subject)
            for name in sorted(_inside(folder, folder, 0), key=_natural):
                paths.setdefault(name, folder)
        else:
            paths[subject] = None
    return dict(list(paths.items())[:MOST_FILES])


def find_mixed_folders(paths: Mapping[str, Path | None]) -> tuple[str, ...]:
    """Folders below a named one that hold logs, if they are too unlike each other to be of one job,
    as in a temporary folder; names that differ in a number or a hash are alike. Else empty."""
    kinds: dict[str, str] = {}
    for path, root in paths.items():
        if root is not None:
            folder = os.path.dirname(path)
            kinds.setdefault(_WITH_A_NUMBER.sub("#", os.path.relpath(folder, root)), folder)
    return tuple(kinds.values()) if len(kinds) > MOST_KINDS else ()


def _inside(root: Path, folder: Path, depth: int) -> Iterator[str]:
    """The regular files of a folder, without links and hidden files."""
    for entry in entries_below(root, folder):
        if entry.name.startswith("."):
            continue
        if entry.is_folder and depth < MOST_DEPTH:
            yield from _inside(root, entry.path, depth + 1)
        elif entry.is_file and _LOG.search(entry.name):
            yield str(entry.path)


def _natural(name: str) -> list[tuple[str, int]]:
    """A sort key that places `rank_2` before `rank_10`."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d{0,18})", name)]


@dataclass(slots=True)
class LabelledLog:
    """A log, and how its labels become ranks."""

    scanned: Scanned
    rank: int | None = None
    """Rank of the process that wrote all of it, by the file's name."""
    local_is_rank: bool = True

    def of(self, rank: int | None, local_rank: int | None) -> int | None:
        if rank is not None:
            return rank
        if local_rank is not None and self.local_is_rank:
            return local_rank
        return self.rank


def with_ranks(scanned: Sequence[Scanned], world_size: int | None) -> list[LabelledLog]:
    """The logs with their ranks. A log whose lines have labels of several ranks has none. A local
    rank counts as a rank only if one log covers one host."""
    by_name = ranks_from_names([log.source for log in scanned])
    logs = []
    for source, rank in zip(scanned, by_name, strict=True):
        named = rank if source.ranks <= {rank} else None
        most = max(source.local_ranks, default=-1)
        one_host = max(source.ranks, default=-1) <= most and (world_size or 0) <= most + 1
        logs.append(LabelledLog(source, named, local_is_rank=one_host))
    if sum(bool(log.local_ranks) for log in scanned) > 1:
        for log in logs:
            log.local_is_rank = False
    return logs


def ranks_seen(logs: Iterable[LabelledLog]) -> set[int]:
    """The ranks that printed something, as far as it was looked at."""
    seen: set[int] = set()
    for log in logs:
        seen |= log.scanned.ranks
        seen |= {hit.rank for hit in log.scanned.hits if hit.rank is not None}
        if log.rank is not None:
            seen.add(log.rank)
        elif log.local_is_rank:
            seen |= log.scanned.local_ranks
    return seen
