"""The recordings in the doctor's home: what each is, how large, whether its job still runs."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.inprocess.layout import BOX_SUFFIX
from mgpu_probes.outside.terminal_text import clean

from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.layout import END, INFO, VERDICT
from mgpu_doctor.recording.live_recordings import is_written, read_object

MOST_FILES = 100_000
"""The most files of a recording that are counted."""
MOST_WORDS, LONGEST = 256, 4096
ELSEWHERE = 86_400.0
"""Seconds after its last change for which another host's unfinished recording counts as running:
boxes are copied into it every 30 s."""


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """What the diagnosis at the end of a recording found. `tone`: one of `report.verdict.Tone`."""

    tone: str | None
    code: str | None
    """None: no finding at warning or worse."""
    ranks: tuple[int, ...]
    step_fraction: float | None
    """Share of step time, 0..1, that the finding costs; None: unknown."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A recording. Times are seconds since the epoch; None: unknown."""

    folder: Path
    kind: str | None
    command: tuple[str, ...]
    cwd: str | None
    host: str | None
    started: float | None
    ended: float | None
    exit_code: int | None
    signal: int | None
    boxes: int
    """Number of black boxes: one per rank and attempt."""
    size: int
    """Bytes on the disk."""
    changed: float
    """Time of its last change."""
    alive: bool
    """Whether a process writes into it here, or may do so on another host."""
    verdict: KeptVerdict | None = None
    """None: it was not diagnosed."""

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def state(self) -> str:
        """`running`, `ok`, `exit 1`, `signal 9`, or `no end`: the doctor itself was killed."""
        if self.alive:
            return "running"
        if self.signal is not None:
            return f"signal {self.signal}"
        if self.exit_code is not None:
            return f"exit {self.exit_code}" if self.exit_code else "ok"
        return "no end"

    @property
    def failed(self) -> bool:
        return self.signal is not None or bool(self.exit_code)


def all_kept(environment: Mapping[str, str] = os.environ) -> list[Kept]:
    """Returns all kept recordings, newest start first."""
    try:
        entries = list(os.scandir(runs(environment)))
    except OSError:
        return []
    recordings = [
        one_kept(Path(entry.path)) for entry in entries if entry.is_dir(follow_symlinks=False)
    ]
    return sorted(
        (kept for kept in recordings if kept is not None),
        key=lambda kept: (kept.started or kept.changed, kept.id),
        reverse=True,
    )


def one_kept(folder: Path) -> Kept | None:
    """Returns the recording in a folder; None if it is not a recording."""
    info, end = read_object(folder, INFO), read_object(folder, END)
    if info is None:
        return None
    end = end or {}
    size, changed, boxes = _measured(folder)
    host = _text(info.get("host"))
    here = host in (None, os.uname().nodename)
    elsewhere = not here and not end and time.time() - changed < ELSEWHERE
    words = info.get("command")
    listed = words if isinstance(words, list) else []
    return Kept(
        folder=folder,
        kind=_text(info.get("kind")),
        command=tuple(_text(word) or "" for word in listed[:MOST_WORDS]),
        cwd=_text(info.get("cwd")),
        host=host,
        started=_number(info.get("started")),
        ended=_number(end.get("ended")),
        exit_code=_whole(end.get("exit_code")),
        signal=_whole(end.get("signal")),
        boxes=boxes,
        size=size,
        changed=changed,
        alive=is_written(folder) or elsewhere,
        verdict=_read_verdict(folder),
    )


def _read_verdict(folder: Path) -> KeptVerdict | None:
    kept = read_object(folder, VERDICT)
    if not kept:
        return None
    ranks = kept.get("ranks")
    listed = ranks[:MOST_WORDS] if isinstance(ranks, list) else []
    share = _number(kept.get("step_fraction"))
    return KeptVerdict(
        tone=_text(kept.get("tone")),
        code=_text(kept.get("code")),
        ranks=tuple(rank for rank in map(_whole, listed) if rank is not None),
        step_fraction=share if share is not None and share <= 1 else None,
    )


def _measured(folder: Path) -> tuple[int, float, int]:
    """Returns bytes, last change and number of black boxes. Links are not followed."""
    size, changed, boxes = 0, 0.0, 0
    for entry, status in _files(folder):
        size += status.st_blocks * 512
        changed = max(changed, status.st_mtime)
        boxes += entry.name.endswith(BOX_SUFFIX)
    return size, changed, boxes


def _files(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    folders = [str(folder)]
    for _ in range(MOST_FILES):
        if not folders:
            return
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue  # removed meanwhile, or not ours
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.path)
            else:
                yield entry, status


def _text(value: object) -> str | None:
    return clean(value, LONGEST) if isinstance(value, str) else None


def _number(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if known and isinstance(value, (int, float)) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 31 else None
