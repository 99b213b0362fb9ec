"""The boxes of a large job are read by two processes, and none is lost if the second one fails.

What a test puts in the place of `many._packed` is what a process does with some boxes: the child
has it as it was when it began.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import psutil
import pytest
from mgpu_probes.inprocess import layout

from mgpu_doctor.recording import parallel_boxes as many
from mgpu_doctor.recording import second_process
from mgpu_doctor.recording.box import STEP_DTYPE, Box, BoxFile, read_box
from mgpu_doctor.recording.columns import Columns, Packer
from mgpu_doctor.recording.parallel_boxes import Read, reading
from mgpu_doctor.recording.second_process import in_order
from tests.support.boxes import finished, overwrite, sound_records

COUNT = 21
FIELDS = STEP_DTYPE.names or ()
packed = many._packed


@pytest.fixture
def files(tmp_path: Path) -> list[BoxFile]:
    """Boxes, one that is none, one that is not there, and some with impossible times."""
    found = []
    for number in range(COUNT):
        folder = tmp_path / str(number)
        found.append(BoxFile.of(finished(folder, steps=number)))
    found[4].path.write_bytes(b"no box" * 1000)
    found[9].path.unlink()
    impossible: list[tuple[int, str, dict[str, object]]] = [
        (10, "steps", {"wall_ns": -5}),
        (14, "steps", {"end_ns": 1 << 62}),
        (17, "steps", {"phases": [[-1.0] * 10]}),
        (18, "steps", {"cpu_s": 3e38}),
        (20, "history", {"wall_ns": 1 << 62, "micro_batches": 1}),
    ]
    for number, area, values in impossible:
        overwrite(found[number].path, layout.areas()[area], sound_records(values))
    return found


@pytest.fixture(autouse=True)
def in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few boxes are many, and what other tests left running does not count."""
    STRANGERS.clear()
    STRANGERS.update(psutil.Process().children())
    monkeypatch.setattr(many, "MANY", 5)
    monkeypatch.setattr(many, "AT_ONCE", 4)
    monkeypatch.setattr(second_process, "may_fork", lambda: True)


STRANGERS: set[psutil.Process] = set()
"""Children that tests before this one have left."""


def children() -> list[int]:
    """Ours."""
    return [child.pid for child in psutil.Process().children() if child not in STRANGERS]


def ended(child: int) -> None:
    """Waits until it has ended, and leaves it to whoever began it."""
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def in_child(change: Callable[[], None]) -> Callable[[Sequence[BoxFile], Packer], list[Read]]:
    """Reads, but for the child: it does this first."""
    here = os.getpid()

    def read(files: Sequence[BoxFile], packer: Packer) -> list[Read]:
        if os.getpid() != here:
            change()
        return packed(files, packer)

    return read


def content(box: Box) -> list[object]:
    """Bit by bit, as numbers that are none differ from themselves."""
    apart = ("steps", "history", "device_times")
    plain = [getattr(box, name) for name in Box.__struct_fields__ if name not in apart]
    times = [] if box.device_times is None else box.device_times.tolist()
    arrays = [records[name] for records in (box.steps, box.history) for name in FIELDS]
    return [
        *plain,
        repr(times),
        box.history.dtype,
        *((array.dtype, array.tobytes()) for array in arrays),
    ]


def check(files: list[BoxFile], found: list[Read]) -> None:
    """Each as if it had been read alone."""
    assert "it is not a black box" in str(found[4])
    assert found[9] == f"{files[9].path} cannot be read: No such file or directory"
    assert len(found) == COUNT
    for file, one in zip(files, found, strict=True):
        if isinstance(one, str):
            assert file in (files[4], files[9])
        else:
            assert isinstance(one.steps, Columns)
            assert content(one) == content(read_box(file))


def test_what_both_read_is_what_is_there(files: list[BoxFile]) -> None:
    with reading(files) as read_all:
        check(files, in_order(dict(read_all())))
    assert children() == []


def test_what_the_child_alone_read_is_all_there(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> list[Read]:
        raise AssertionError("nothing was left to be read here")

    with reading(files) as read_all:
        ended(children()[0])
        monkeypatch.setattr(many, "_packed", never)
        found = in_order(dict(read_all()))
    check(files, found)
    arrays = [box.steps["wall_ns"] for box in found if isinstance(box, Box) and len(box.steps)]
    assert arrays
    assert not any(array.flags.writeable for array in arrays)


@pytest.mark.parametrize("ends", ["killed", "fails", "killed later"])
def test_a_child_that_dies_loses_nothing(
    files: list[BoxFile],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ends: str,
) -> None:
    begun: list[None] = []

    def change() -> None:
        begun.append(None)
        if ends == "fails":
            raise ValueError("no box of any kind")
        if ends == "killed" or len(begun) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(many, "_packed", in_child(change))
    with reading(files) as read_all:
        ended(children()[0])
        check(files, in_order(dict(read_all())))
    assert children() == []
    assert capfd.readouterr() == ("", "")


def test_a_process_whose_children_nobody_awaits_reads_all(files: list[BoxFile]) -> None:
    usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with reading(files) as read_all:
            check(files, in_order(dict(read_all())))
    finally:
        signal.signal(signal.SIGCHLD, usual)
    assert children() == []


def test_no_child_outlives_an_interruption(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "_packed", in_child(lambda: time.sleep(600)))
    began = []

    def interrupted() -> None:
        with reading(files):
            began.extend(children())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(began) == 1
    assert children() == []


def test_an_interruption_of_both_is_reported_by_one(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ready, tell = os.pipe()

    def wait() -> None:
        os.write(tell, b"!")
        time.sleep(600)

    monkeypatch.setattr(many, "_packed", in_child(wait))
    with reading(files) as read_all:
        os.read(ready, 1)
        os.kill(children()[0], signal.SIGINT)
        ended(children()[0])
        check(files, in_order(dict(read_all())))
    os.close(ready)
    os.close(tell)
    assert capfd.readouterr() == ("", "")


def test_where_no_process_is_left_all_is_read_here(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> int:
        raise BlockingIOError("too many processes")

    gc.collect()  # files of others, which close when they are found to be garbage
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", none)
    with reading(files) as read_all:
        check(files, in_order(dict(read_all())))
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_process_with_threads_begins_no_other(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(many, "MANY", 5)
    over = Event()
    thread = Thread(target=over.wait)
    thread.start()
    try:
        with reading(files) as read_all:
            assert children() == []
            check(files, in_order(dict(read_all())))
    finally:
        over.set()
        thread.join()


def test_what_is_needed_next_is_loaded_while_both_read(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(second_process, "_needed_next", set())
    monkeypatch.setattr(importlib, "import_module", loaded.append)
    second_process.load_meanwhile("needed")
    with reading(files, read_box):
        assert loaded == ["needed"]
    with reading(files, read_box):
        assert loaded == ["needed"]


def test_a_second_process_begins_no_other_and_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(second_process, "threading", SimpleNamespace(active_count=lambda: 1))
    here, (reader, writer) = os.getpid(), os.pipe()

    def look() -> tuple[bool, bool]:
        if os.getpid() != here:
            os.read(reader, 1)
        return os.getpid() == here, second_process.may_fork()

    works = [second_process.Divided.in_one(look)]
    assert second_process.may_fork()
    with second_process.sharing_works(works, second_process.MANY_CELLS) as results:
        assert not second_process.may_fork()
        os.write(writer, b"!")
        ended(children()[0])
        assert second_process.may_fork()
        assert results.of(works[0]) == (False, False)
    assert second_process.may_fork()
    os.close(reader)
    os.close(writer)


def test_another_reader_reads_here_and_as_it_likes(files: list[BoxFile]) -> None:
    asked = []

    def read(file: BoxFile) -> Box:
        asked.append(file)
        return read_box(file)

    with reading(files, read) as read_all:
        assert children() == []
        found = in_order(dict(read_all()))
    assert asked == files
    assert not any(isinstance(box, Box) and isinstance(box.steps, Columns) for box in found)


def test_a_full_disk_leaves_them_in_memory(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with reading(files) as read_all:
        check(files, in_order(dict(read_all())))


def test_without_a_folder_for_temporary_files_they_are_read_here(
    files: list[BoxFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**_: object) -> None:
        raise FileNotFoundError("no usable temporary folder")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    with reading(files) as read_all:
        check(files, in_order(dict(read_all())))
