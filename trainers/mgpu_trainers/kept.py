"""Whether checkpoints can be kept in a folder, before anything is started; and what is told of one
that was there. Imports no framework."""

import os
import zipfile
from pathlib import Path

from mgpu_trainers.options import UsageError

FILE = "checkpoint.pt"
"""PyTorch's, a zip archive."""


def check(folder: Path) -> None:
    """Raises UsageError where nothing can be written, or what is there cannot be read."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise UsageError(f"--save-to {folder}: {there} is no folder", "save-to")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"--save-to {folder}: {there} cannot be written to", "save-to")
    file = folder / FILE
    if file.exists() and not zipfile.is_zipfile(file):
        raise UsageError(
            f"{file} is no checkpoint, or only a part of one: move it away, or name another folder "
            "with --save-to",
            "save-to",
        )


def told(done: int, steps: int) -> str:
    """Of a checkpoint that has `done` steps, where `steps` are wanted in all."""
    more = "" if done < steps else f", and --steps {steps} asks for no more"
    return f"resumed after step {done}{more}"
