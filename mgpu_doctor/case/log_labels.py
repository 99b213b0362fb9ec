"""Whose the lines of a log are: labels and file names turned into ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mgpu_probes.outside.logs.log_files import ranks_from_names
from mgpu_probes.outside.logs.log_scanner import Scanned


@dataclass(slots=True)
class Whose:
    """A log, and how its labels become ranks."""

    scanned: Scanned
    rank: int | None = None
    """Of the process that wrote all of it, by the file's name."""
    local_is_rank: bool = True

    def of(self, rank: int | None, local_rank: int | None) -> int | None:
        if rank is not None:
            return rank
        if local_rank is not None and self.local_is_rank:
            return local_rank
        return self.rank


def with_ranks(scanned: Sequence[Scanned], world_size: int | None) -> list[Whose]:
    """A log that its own lines label with several ranks is no rank's. A local rank is a rank only
    where one log tells of one host."""
    by_name = ranks_from_names([one.source for one in scanned])
    logs = []
    for one, rank in zip(scanned, by_name, strict=True):
        named = rank if one.ranks <= {rank} else None
        most = max(one.local_ranks, default=-1)
        one_host = max(one.ranks, default=-1) <= most and (world_size or 0) <= most + 1
        logs.append(Whose(one, named, local_is_rank=one_host))
    if sum(bool(one.local_ranks) for one in scanned) > 1:
        for log in logs:
            log.local_is_rank = False
    return logs


def ranks_seen(logs: Iterable[Whose]) -> set[int]:
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
