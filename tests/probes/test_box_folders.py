"""Where a rank writes its black box: only in a folder that is its user's alone to change.

Ranks on other hosts than the doctor's make that folder themselves, and somebody may have been
there first. Who can cut a box off ends its rank with the next store.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from mgpu_probes.inprocess import boxfile, filesystem
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.probe_context import ProbeContext

from tests.support.users import give_to_other_user

MOUNTS = {
    "ext4": True,
    "xfs": True,
    "tmpfs": True,
    "btrfs": False,
    "zfs": False,
    "nfs4": False,
    "lustre": False,
    "fuse": False,
    "fuseblk": False,
    "fuse.sshfs": False,
    "dvs": False,
    "quobyte": False,
    "9p": False,
    "virtiofs": False,
    "tomorrowfs": False,
}


def test_missing_folders_are_made_private_all_of_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Writer.open(tmp_path / "a/b/boxes", rank=0, world_size=1)
    finally:
        os.umask(before)
    for folder in ("a", "a/b", "a/b/boxes"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "boxes"
    folder.mkdir(mode=0o700)
    give_to_other_user(folder, monkeypatch, boxfile)
    with pytest.raises(PermissionError):
        Writer.open(folder, rank=0, world_size=1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o720])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "boxes"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError):
        Writer.open(folder, rank=0, world_size=1)
    assert list(folder.iterdir()) == []


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "boxes").symlink_to("elsewhere")
    with pytest.raises(OSError, match="boxes"):
        Writer.open(tmp_path / "boxes", rank=0, world_size=1)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_rank_without_a_place_for_its_box_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes").chmod(0o777)
    monkeypatch.setenv("MGPU_DOCTOR_BOXES", str(tmp_path / "boxes"))
    process = ProbeContext()
    process.on = True
    assert process.open() is False
    assert process.on is False


@pytest.mark.parametrize(("kind", "safe"), MOUNTS.items())
def test_only_file_systems_that_keep_what_they_reserve_count(
    kind: str, safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "file_system", lambda _: kind)
    if safe:
        Writer.open(tmp_path / "boxes", rank=0, world_size=1)
    else:
        with pytest.raises(OSError, match=f"cannot be mapped on a file system of {kind}"):
            Writer.open(tmp_path / "boxes", rank=0, world_size=1)
        assert list((tmp_path / "boxes").iterdir()) == []


def test_the_file_system_is_read_by_descriptor() -> None:
    with open("/proc/self/status", "rb") as status:
        assert filesystem.file_system(status.fileno()) == "proc"
    assert filesystem.file_system(10**6) is None


def test_an_unknown_file_system_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "file_system", lambda _: None)
    with pytest.raises(OSError, match="unknown"):
        Writer.open(tmp_path / "boxes", rank=0, world_size=1)


def test_a_limit_on_the_size_of_files_ends_nobody(tmp_path: Path) -> None:
    """To grow a file beyond it raises SIGXFSZ, which is deadly where a program made it so."""
    program = (
        "import resource, signal, sys\n"
        "from mgpu_probes.inprocess.blackbox import Writer\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        "    Writer.open(sys.argv[1], rank=0, world_size=1)\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    command = [sys.executable, "-B", "-c", program, str(tmp_path / "boxes")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "27", "")
    assert list((tmp_path / "boxes").iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
