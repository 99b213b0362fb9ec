"""Folders for checkpoints that no job should be started for."""

import os
import zipfile
from pathlib import Path

import pytest
from mgpu_trainers import catalogue
from mgpu_trainers.kept import FILE, check, told
from mgpu_trainers.options import UsageError


def test_a_folder_that_is_there_or_can_be_made_is_taken(tmp_path: Path) -> None:
    check(tmp_path)
    check(tmp_path / "new" / "newer")
    with zipfile.ZipFile(tmp_path / FILE, "w") as whole:
        whole.writestr("data.pkl", b"")
    check(tmp_path)


def test_what_is_no_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = {"save_to": str(tmp_path / "file" / "deeper")}
    with pytest.raises(UsageError, match=r"/file is no folder$") as refused:
        catalogue.command(catalogue.find("torch-ddp"), 2, options)
    assert refused.value.option == "save-to"


def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(UsageError, match="cannot be written to"):
        check(tmp_path / "new")


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 and then the disk was full"])
def test_a_checkpoint_that_is_none_is_told_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UsageError, match="move it away, or name another folder"):
        check(tmp_path)


def test_a_checkpoint_with_all_the_steps_is_told_as_such() -> None:
    assert told(20, 60) == "resumed after step 20"
    assert told(100, 60) == "resumed after step 100, and --steps 60 asks for no more"
