"""Where ranks' collectives diverge, as a fact for rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.case.flight_records import Collective


class Kind(str, Enum):
    SKIPPED = "skipped"
    """A rank left out a collective that the others made."""
    EXTRA = "extra"
    """A rank made a collective that the others did not make."""
    OPERATION = "operation"
    SHAPE = "shape"
    DTYPE = "dtype"
    SITE = "site"
    """All are in one collective and it does not end; a rank called it from elsewhere in the code,
    which it never did before: the source of a broadcast may differ, which is not recorded."""
    BEHIND = "behind"
    """Ranks never called a collective in which others wait."""
    AHEAD = "ahead"
    """Ranks wait in a collective that most have not called; which ranks are wrong is unknown."""
    DEADLOCK = "deadlock"
    """Ranks wait for each other in a ring, each in another group."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place at which ranks' collectives diverge."""

    kind: Kind
    group: str
    members: tuple[int, ...]
    sequence: int
    """Sequence number of the collective in its group."""
    expected: Collective | None
    """The call of most ranks there, or the one that the waiting ranks wait in."""
    expecting: tuple[int, ...]
    """The ranks that called it."""
    deviating: Mapping[int, Collective | None]
    """The call of each other rank there; None: no call. In a deadlock: the call each waits in."""
    culprits: tuple[int, ...]
    """Empty if the dumps are inconclusive."""
    waiting: tuple[int, ...]
    """Ranks that were in an unfinished collective."""
    missing: tuple[int, ...]
    """Members of the group that left no dump."""
    agreed: int
    """Earlier collectives of the group that at least two dumps hold."""
    calls: int = 1
    """Number of collectives that a rank skipped or made in excess."""
    seconds: float | None = None
    """Seconds for which the job was blocked at least, when the dumps were made; None: unknown."""
    is_blocked: bool = True
    """False: the ranks continued, with wrong partners; or it is unknown (`seconds` is None)."""
    beyond: int = 0
    """Collectives of the group that every rank called afterwards."""
    by_routine: bool = False
    """Whether only the usual pattern of calls shows the culprit, not a majority of the ranks."""
