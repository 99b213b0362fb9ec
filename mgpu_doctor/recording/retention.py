"""Decides which recordings are kept, and removes the others completely; never one of a running
job."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.kept_recordings import Kept, all_kept

VARIABLE = "MGPU_DOCTOR_KEEP"
"""The environment variable that says how much is kept, as `20GiB`; `all`: everything."""
KEPT_BYTES = 8 << 30
"""Default of that variable: some hundreds of recordings of 8 ranks."""
YOUNG = 86_400.0
"""Seconds after its end for which a recording is never removed automatically."""
GOING = ".going-"
"""Prefix of a folder that is being removed."""
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([KMGT]i?)?B?", re.IGNORECASE)
_AGE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?([smhdw])")
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def size_of(text: str) -> int | None:
    """Returns the bytes that `20GiB`, `500 MB` or `4096` mean (always binary prefixes); None if
    invalid."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** _UNITS[(match[2] or "")[:1].lower()])


def seconds_of(text: str) -> float | None:
    """Returns the seconds that `30d`, `12h` or `2w` mean; None if invalid."""
    match = _AGE.fullmatch(text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match else None


def superfluous(
    kept: Iterable[Kept],
    now: float,
    *,
    older: float | None = None,
    most: int | None = None,
    keep: int | None = None,
) -> list[Kept]:
    """Returns the recordings to remove, oldest first: those last changed more than `older` seconds
    ago, and enough of the oldest to leave at most `most` bytes and `keep` recordings. Running ones
    are kept and count. Pure."""
    ordered = sorted(kept, key=lambda kept: (kept.changed, kept.id))
    size, count = sum(recording.size for recording in ordered), len(ordered)
    going = []
    for recording in ordered:
        old = older is not None and now - recording.changed > older
        large = (most is not None and size > most) or (keep is not None and count > keep)
        if not recording.alive and (old or large):
            going.append(recording)
            size, count = size - recording.size, count - 1
    return going


def remove(going: Sequence[Kept]) -> tuple[list[Kept], list[tuple[Kept, str]]]:
    """Removes recordings; returns those removed, and the others with the reason. A folder is
    renamed first, so that no reader finds half a recording."""
    gone, left = [], []
    for kept in going:
        try:
            place = kept.folder.with_name(f"{GOING}{kept.id}")
            kept.folder.rename(place)
            shutil.rmtree(place)
        except OSError as error:
            left.append((kept, error.strerror or str(error)))
        else:
            gone.append(kept)
    return gone, left


def bound(environment: Mapping[str, str] = os.environ) -> int | None:
    """Returns the bytes to keep; None: keep all, also if the variable is invalid."""
    value = environment.get(VARIABLE, "").strip()
    return KEPT_BYTES if not value else size_of(value)


def tidy(now: float, environment: Mapping[str, str] = os.environ) -> list[Kept]:
    """Removes recordings beyond the bound, except recent ones, and leftovers of earlier
    removals."""
    for folder in _half_gone(runs(environment)):
        shutil.rmtree(folder, ignore_errors=True)
    most = bound(environment)
    if most is None:
        return []
    going = superfluous(all_kept(environment), now, most=most)
    return remove([kept for kept in going if now - kept.changed > YOUNG])[0]


def _half_gone(folder: Path) -> list[Path]:
    try:
        return [
            Path(entry.path)
            for entry in os.scandir(folder)
            if entry.name.startswith(GOING) and entry.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return []
