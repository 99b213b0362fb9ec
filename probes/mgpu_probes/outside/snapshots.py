"""A memory snapshot of torch, as `torch.cuda.memory._dump_snapshot(file)` writes it: a pickle of
plain values, read by a reader that cannot run anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mgpu_probes.outside.flight.unpickler import MOST_BYTES, NotAFlightError, unpickle
from mgpu_probes.outside.foreign import open_named


class NotASnapshotError(Exception):
    """What was read is no memory snapshot; the message says why in a sentence."""


def read_snapshot(path: Path) -> dict[str, Any]:
    """Its `segments` and `device_traces` as they are, unchecked below that; call stacks are
    `Later`. Raises NotASnapshotError."""
    try:
        with open(open_named(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise NotASnapshotError(f"{path} is no file of at most {MOST_BYTES >> 20} MiB")
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotASnapshotError(f"{path} cannot be read ({error.strerror})") from None
    try:
        found = unpickle(raw, later=True)
    except NotAFlightError as error:
        raise NotASnapshotError(f"{path} is no memory snapshot: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise NotASnapshotError(f"{path} is no memory snapshot: it holds no segments")
    return found
