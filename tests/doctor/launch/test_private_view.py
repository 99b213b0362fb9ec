"""A private view: the command writes as usual, and nothing of it is left."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mgpu_doctor.launch.private_view import CANNOT, view_command, why_impossible

SCRIPT = """
echo new > old.txt; cat old.txt
echo more > more.txt; mkdir deep; echo x > deep/file; rm gone.txt
echo kept > "$KEPT/file"
echo shared > /dev/shm/mgpu-view-test; cat /dev/shm/mgpu-view-test
echo away > /tmp/mgpu-view-test; cat /tmp/mgpu-view-test
ls; cat /proc/net/dev | wc -l
exit 7
"""


@dataclass
class Folders:
    scratch: Path
    kept: Path
    work: Path

    @property
    def command(self) -> list[str]:
        return view_command(self.scratch, self.kept)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(*(tmp_path / name for name in ("scratch", "kept", "work")))
    for folder in (made.scratch, made.kept, made.work):
        folder.mkdir()
    (made.work / "old.txt").write_text("old\n")
    (made.work / "gone.txt").write_text("gone\n")
    return made


def test_nothing_that_is_written_is_left_but_in_the_kept_folder(folders: Folders) -> None:
    """Where the kernel allows no such view, it says so in one line, and starts nothing."""
    why = why_impossible(folders.scratch, folders.kept)
    done = subprocess.run(
        [*folders.command, "sh", "-c", SCRIPT],
        cwd=folders.work,
        env=os.environ | {"KEPT": str(folders.kept)},
        capture_output=True,
        text=True,
        check=False,
    )
    if why is not None:
        assert done.returncode == CANNOT
        assert done.stderr.strip() == why
    else:
        assert done.stdout.splitlines() == [
            "new", "shared", "away", "deep", "more.txt", "old.txt", "3",
        ]  # fmt: skip
        assert done.returncode == 7
        assert (folders.kept / "file").read_text() == "kept\n"
    assert sorted(path.name for path in folders.work.iterdir()) == ["gone.txt", "old.txt"]
    assert (folders.work / "old.txt").read_text() == "old\n"
    assert not any(folders.scratch.iterdir())
    assert not Path("/dev/shm/mgpu-view-test").exists()
    assert not Path("/tmp/mgpu-view-test").exists()


MAKE = """
import ctypes, sys
libc = ctypes.CDLL(None)
key = int(sys.argv[1])
found = libc.shmget(key, 0, 0)
made = [libc.shmget(key + 1, 4096, 0o1600), libc.semget(key + 1, 1, 0o1600)]
made += [libc.msgget(key + 1, 0o1600)]
print(found, min(made) >= 0)
"""
"""Looks for the shared memory of a key; makes some of the next one, semaphores and a message queue.
01000 is IPC_CREAT."""


@pytest.fixture
def segment_key() -> Iterator[int]:
    """The key of a segment of System V shared memory that another process may use."""
    libc = ctypes.CDLL(None)
    key = int.from_bytes(os.urandom(3), "big") + 1
    segment = libc.shmget(key, 4096, 0o1600)
    assert segment >= 0
    yield key
    assert libc.shmctl(segment, 0, None) == 0  # IPC_RMID: nothing else has removed it


def list_objects() -> list[str]:
    """The System V shared memory, semaphores and message queues of this machine, by key."""
    tables = [Path("/proc/sysvipc", kind).read_text() for kind in ("shm", "sem", "msg")]
    return [row.split()[0] for table in tables for row in table.splitlines()[1:]]


def test_shared_memory_of_the_command_ends_with_it(folders: Folders, segment_key: int) -> None:
    """It also sees none of others: a job that attaches to some fails in a private view."""
    if why_impossible(folders.scratch, folders.kept) is not None:
        pytest.skip("no private views here")
    assert str(segment_key) in list_objects()
    made = subprocess.run(
        [*folders.command, sys.executable, "-c", MAKE, str(segment_key)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.split() == ["-1", "True"]
    assert str(segment_key + 1) not in list_objects()


def test_a_view_that_cannot_be_made_is_explained(folders: Folders, tmp_path: Path) -> None:
    why = why_impossible(tmp_path / "missing", folders.kept)
    assert why is not None
    assert "missing" in why or "not allowed" in why
