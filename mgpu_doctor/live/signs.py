"""Signs of known failures in what a running job prints, as they appear.

Only the end of the console is looked through: what it held before is remembered. They are told as
events; verdicts on them are left to `diagnose`, which reads the whole console.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from mgpu_doctor.case.logs import signs_of
from mgpu_doctor.case.printed import read_streams
from mgpu_doctor.case.signs import Sign

MOST_BYTES = 1 << 18
"""Of each stream: what a job prints between two looks is far less."""
MOST_SIGNS = 256
Key = tuple[str, int | None, str]


class ConsoleSigns:
    """For one thread. `look` costs some tens of milliseconds where anything was printed since."""

    def __init__(self, recording: Path, clock: Callable[[], float] = time.time) -> None:
        self._recording = recording
        self._clock = clock
        self._known: dict[Key, Sign] = {}
        self._seen: Mapping[str, list[str]] | None = None

    @property
    def known(self) -> tuple[Sign, ...]:
        """In the order in which they were found."""
        return tuple(self._known.values())

    def look(self) -> None:
        """What a line without a time stamp tells happened between the looks before and after it;
        of what was there at the first look nobody knows when."""
        streams = read_streams(self._recording, MOST_BYTES)
        if streams == self._seen:
            return
        at = None if self._seen is None else self._clock()
        self._seen = streams
        for sign in signs_of(streams):
            key = (sign.signature, sign.rank, sign.source)
            before = self._known.get(key)
            if before is not None:
                most = max(before.count, sign.count)
                self._known[key] = replace(before, count=most)
            elif len(self._known) < MOST_SIGNS:
                self._known[key] = sign if sign.at is not None else replace(sign, at=at)
