"""Brings live black boxes into a recording that lies on a network file system."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mgpu_probes.inprocess.layout import BOX_SUFFIX

from mgpu_doctor.recording.write import write_whole

LARGEST = 32 << 20
MOST = 1024


def copy(source: Path, target: Path) -> None:
    """Copy every box of `source`. A box may be copied while it
    is written: its checksums tell a reader which records are whole. Raises `OSError`."""
    boxes = [entry for entry in os.scandir(source) if entry.name.endswith(BOX_SUFFIX)]
    for entry in boxes[:MOST]:
        state = entry.stat(follow_symlinks=False)
        if entry.is_file(follow_symlinks=False) and state.st_size <= LARGEST:
            with open(entry.path, "rb") as box:
                write_whole(target / entry.name, box.read(LARGEST))


def move(source: Path, target: Path) -> None:
    """`copy` for the last time: then the private folder `source` goes. Raises `OSError`, and
    leaves everything where it is, if not all could be copied."""
    copy(source, target)
    shutil.rmtree(source)
