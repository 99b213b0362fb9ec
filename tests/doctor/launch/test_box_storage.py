"""Where live boxes are stored: only where a store into their mapping cannot fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mgpu_doctor.launch import box_storage
from mgpu_doctor.launch.box_storage import (
    BoxesPlace,
    NoLocalStorageError,
    boxes_place,
    can_map_boxes,
)
from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording.live_recordings import KEY_FILE, belongs, make_outside


@pytest.fixture
def unsafe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below which, as everywhere but in `tmp_path / local`, no box can be mapped."""
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(
        box_storage, "can_map_boxes", lambda folder: local in (folder, *folder.parents)
    )
    return tmp_path / "unsafe"


def test_boxes_lie_in_the_recording_where_they_can(tmp_path: Path) -> None:
    assert can_map_boxes(tmp_path)
    assert boxes_place(tmp_path / "r", "host") == BoxesPlace(tmp_path / "r/hosts/host/boxes")


def test_else_in_a_private_local_folder(tmp_path: Path, unsafe: Path) -> None:
    environment = {"SLURM_TMPDIR": str(tmp_path / "absent"), "TMPDIR": str(tmp_path / "local")}
    place = boxes_place(unsafe / "r", "host", environment)
    assert place.folder.parent == tmp_path / "local"
    assert place.folder.stat().st_mode & 0o777 == 0o700
    assert (place.folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert belongs(str(place.folder), place.key)


def test_without_any_local_folder_there_are_no_boxes_and_the_job_runs(
    tmp_path: Path,
    unsafe: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box_storage, "can_map_boxes", lambda _: False)
    with pytest.raises(NoLocalStorageError):
        boxes_place(unsafe / "r", "host")
    recording = RunRecording.begin(unsafe / "q", {})
    assert recording.folder == unsafe / "q"
    assert recording.boxes is None
    assert "Set TMPDIR to a folder on a local disk" in capsys.readouterr().err
    assert tmp_path.exists()


def test_nothing_can_be_mapped_where_nothing_can_be_written(tmp_path: Path) -> None:
    assert not can_map_boxes(tmp_path / "absent")
    assert not can_map_boxes(Path("/proc"))


def test_a_live_folder_belongs_to_the_recording_that_holds_its_key(tmp_path: Path) -> None:
    folder, key = make_outside(tmp_path)
    _, other = make_outside(tmp_path)
    assert belongs(str(folder), key)
    assert not belongs(str(folder), other)
    assert not belongs(str(folder), "")
    assert not belongs(str(folder), None)
    assert not belongs(str(folder), "ä" * 32)
    assert not belongs(os.path.relpath(folder), key)
    assert not belongs(f"{folder}\0", key)


def test_no_other_folder_is_one(tmp_path: Path) -> None:
    """A recording may name any folder; those of its reader's stay closed to it."""
    folder, key = make_outside(tmp_path)
    link = tmp_path / "mgpu-doctor-boxes-link"
    link.symlink_to(folder)
    assert not belongs(str(link), key)
    renamed = folder.rename(tmp_path / "home")
    assert not belongs(str(renamed), key)
    folder, key = make_outside(tmp_path)
    folder.chmod(0o755)
    assert not belongs(str(folder), key)
    folder, key = make_outside(tmp_path)
    (folder / KEY_FILE).unlink()
    os.mkfifo(folder / KEY_FILE)
    assert not belongs(str(folder), key)


def test_a_box_is_copied_again_only_if_it_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "live", tmp_path / "copies"
    source.mkdir()
    target.mkdir()
    copied: dict[str, int] = {}
    for name in ("a.1.0.box", "a.2.0.box"):
        (source / name).write_bytes(b"first")
    box_storage.copy(source, target, copied)
    before = {path.name: path.stat().st_ino for path in target.iterdir()}
    (source / "a.2.0.box").write_bytes(b"second")
    box_storage.copy(source, target, copied)
    after = {path.name: path.stat().st_ino for path in target.iterdir()}
    assert before["a.1.0.box"] == after["a.1.0.box"]
    assert before["a.2.0.box"] != after["a.2.0.box"]
    assert (target / "a.2.0.box").read_bytes() == b"second"
