"""What reading untrusted files may do, and what it may cost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mgpu_probes.outside import untrusted_files
from mgpu_probes.outside.untrusted_files import (
    BYTES_AN_OBJECT,
    FIRST_OBJECTS,
    LEAST_DISK,
    UNPACKED,
    Budget,
    OverBudgetError,
    entries_below,
    open_below,
    open_named,
    within_budget,
)

SECRET = b"hunter2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that the user named, beside a secret of his."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_bytes(SECRET)
    (tmp_path / "root/inner").mkdir(parents=True)
    (tmp_path / "root/inner/file").write_bytes(b"plain")
    return tmp_path / "root"


def read(root: Path, path: Path) -> bytes:
    with open(open_below(root, path), "rb") as file:
        return file.read()


def test_a_file_below_the_folder_is_read(root: Path) -> None:
    assert read(root, root / "inner/file") == b"plain"


def test_links_lead_nowhere(root: Path) -> None:
    (root / "file").symlink_to("inner/file")
    (root / "folder").symlink_to("inner")
    (root / "out").symlink_to("../secret")
    (root / "inner/key").symlink_to(root.parent / "secret/key")
    for path in ("file", "folder/file", "out/key", "inner/key"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            open_below(root, root / path)
    for folder in ("folder", "out"):
        assert entries_below(root, root / folder) == []


@pytest.mark.parametrize("path", ["../secret/key", "inner/../../secret/key", "/etc/hostname"])
def test_nothing_beside_the_folder_is_opened(root: Path, path: str) -> None:
    with pytest.raises(OSError, match="does not lie in"):
        open_below(root, root / path)
    assert entries_below(root, root / path) == []


def test_the_folder_itself_may_be_named_through_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert read(link, link / "inner/file") == b"plain"
    assert [entry.name for entry in entries_below(link, link)] == ["inner"]


def test_what_is_no_file_is_not_opened_and_blocks_nobody(root: Path) -> None:
    os.mkfifo(root / "pipe")
    for name in ("pipe", "inner", "."):
        with pytest.raises(OSError, match="no regular file"):
            open_below(root, root / name)
    with pytest.raises(OSError, match="no regular file"):
        open_named("/dev/zero")


def test_entries_say_what_is_a_file_and_what_is_none(root: Path) -> None:
    os.mkfifo(root / "a-pipe")
    (root / "b-link").symlink_to("inner/file")
    (root / "c-file").touch()
    found = [(one.name, one.is_file, one.is_folder) for one in entries_below(root, root)]
    assert found == [
        ("a-pipe", False, False),
        ("b-link", False, False),
        ("c-file", True, False),
        ("inner", False, True),
    ]


def test_folders_that_stay_open_lead_nowhere_else(root: Path) -> None:
    (root / "inner/more").mkdir()
    (root / "inner/more/file").write_bytes(b"more")
    (root / "other").mkdir()
    (root / "other/file").write_bytes(b"other")
    (root / "inner/out").symlink_to("../../secret")
    before = len(os.listdir("/proc/self/fd"))
    with within_budget():
        for _ in range(2):
            assert read(root, root / "inner/more/file") == b"more"
            assert read(root, root / "inner/file") == b"plain"
            for lost in ("inner/out/key", "inner/gone/file", "other/more/file"):
                with pytest.raises(OSError, match=r"Not a directory|No such file"):
                    open_below(root, root / lost)
            assert read(root, root / "other/file") == b"other"
            assert read(root / "inner", root / "inner/file") == b"plain"
            with pytest.raises(OSError, match="No such file"):
                open_below(root / "gone", root / "gone/file")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_earns_by_its_size_and_once(root: Path) -> None:
    path = root / "inner/file"
    path.write_bytes(bytes(1 << 20))
    os.link(path, root / "inner/again")
    with within_budget() as budget:
        begin = budget.objects
        read(root, path)
        earned = budget.objects - begin
        read(root, root / "inner/again")
        read(root, path)
        assert budget.objects == begin + earned
    assert earned == (1 << 20) / BYTES_AN_OBJECT


def test_a_hole_earns_nothing(root: Path) -> None:
    with (root / "inner/file").open("wb") as file:
        file.truncate(1 << 30)
    with within_budget() as budget:
        begin = budget.objects
        os.close(open_below(root, root / "inner/file"))
        assert budget.objects - begin <= LEAST_DISK / BYTES_AN_OBJECT


def test_what_costs_too_much_is_refused() -> None:
    budget = Budget()
    budget.take(FIRST_OBJECTS)
    with pytest.raises(OverBudgetError, match="far more than its size"):
        budget.take(1)
    budget.earn(4 * BYTES_AN_OBJECT)
    budget.take(4)


def test_json_is_paid_before_it_is_parsed() -> None:
    budget = Budget(objects=10)
    budget.take_json(b'{"a": [1, 2]}')
    with pytest.raises(OverBudgetError):
        budget.take_json(b"[" * 100)


def test_what_takes_too_long_is_refused() -> None:
    budget = Budget(deadline=time.thread_time() - 1)
    with pytest.raises(OverBudgetError, match="far longer"):
        budget.check_time()
    budget.earn(10 << 20)
    budget.check_time()


def test_a_packed_file_earns_for_a_usual_packing_and_no_more() -> None:
    budget, disk = Budget(), 1 << 20
    begin = budget.objects
    total = 0
    for _ in range(4 * UNPACKED):
        budget.unpacked(disk, total, disk)
        total += disk
    assert budget.objects - begin == (UNPACKED - 1) * disk / BYTES_AN_OBJECT


def test_a_quarter_of_a_megabyte_never_earns_ten_seconds() -> None:
    budget, disk = Budget(), 1 << 18
    budget.earn(disk)
    budget.unpacked(disk, 0, 4 * UNPACKED * disk)
    assert 9 < budget.deadline - time.thread_time() < 10


def test_one_budget_is_in_force_for_all_that_a_command_reads() -> None:
    with within_budget() as outer, within_budget() as inner:
        assert inner is outer
    with within_budget() as other:
        assert other is not outer


def test_a_folder_of_many_entries_has_a_bound(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_files, "MOST_ENTRIES", 3)
    for number in range(10):
        (root / str(number)).touch()
    assert len(entries_below(root, root)) == 3
