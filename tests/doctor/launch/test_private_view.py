"""A private view: the command writes as usual, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
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


def test_a_view_that_cannot_be_made_is_explained(folders: Folders, tmp_path: Path) -> None:
    why = why_impossible(tmp_path / "missing", folders.kept)
    assert why is not None
    assert "missing" in why or "not allowed" in why
