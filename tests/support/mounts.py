"""Real file systems for tests, on loop devices; only root can mount them."""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

BTRFS = Path(__file__).parents[1] / "recorded/filesystems/btrfs-64MiB.img.xz"
"""`mkfs.btrfs --mixed -d single -m single` on 64 MiB of zeros."""
KINDS = ("ext4", "btrfs", "tmpfs", "overlay on btrfs", "overlay on ext4")

_SYS_ADMIN = 1 << 21
"""CAP_SYS_ADMIN (capabilities(7))."""


def _can_mount() -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    held = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(held.split()[1], 16) & _SYS_ADMIN) and Path("/dev/loop-control").exists()


needs_mounts = pytest.mark.skipif(
    not _can_mount(), reason="only root with loop devices can mount file systems"
)


@contextlib.contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """Mounts a small empty file system of one of `KINDS` in `folder`."""
    with contextlib.ExitStack() as stack:
        if kind.startswith("overlay on "):
            below = stack.enter_context(mounted(kind.removeprefix("overlay on "), folder / "below"))
            layers = {name: below / name for name in ("upper", "work")} | {"lower": folder / "low"}
            for layer in layers.values():
                layer.mkdir()
            options = ",".join(f"{name}dir={layer}" for name, layer in layers.items())
            yield stack.enter_context(_mount(folder / "at", "-t", "overlay", "-o", options))
        elif kind == "tmpfs":
            yield stack.enter_context(_mount(folder / "at", "-t", "tmpfs", "-o", "size=48m"))
        else:
            image = folder / "image"
            folder.mkdir(parents=True, exist_ok=True)
            _make_image(kind, image)
            yield stack.enter_context(_mount(folder / "at", "-o", "loop", source=str(image)))


def _make_image(kind: str, image: Path) -> None:
    if kind == "btrfs":
        with lzma.open(BTRFS) as packed, image.open("wb") as file:
            shutil.copyfileobj(packed, file)
        return
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)


@contextlib.contextmanager
def _mount(point: Path, *options: str, source: str = "none") -> Iterator[Path]:
    point.mkdir(parents=True)
    subprocess.run(["mount", *options, source, str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def fill(folder: Path) -> None:
    """Writes into the file system until it is full."""
    for size in (1 << 20, 1 << 16, 512):
        with contextlib.suppress(OSError), open(folder / f"fill{size}", "wb", buffering=0) as file:
            while True:
                file.write(os.urandom(size))
                if size == 512:
                    os.fsync(file.fileno())
    os.sync()
