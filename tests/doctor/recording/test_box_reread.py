"""A box that is read repeatedly while it is written gives the same as one opened anew."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.boxfile import Sizes
from msgspec.structs import replace

from mgpu_doctor.recording import ring
from mgpu_doctor.recording.box import (
    DEVICE_DTYPE,
    HISTORY_DTYPE,
    STEP_DTYPE,
    Box,
    BoxReader,
    read_box,
)
from tests.support.boxes import SECOND, overwrite, write_device_times, write_steps
from tests.support.seeds import at_most

SMALL = Sizes(steps=8, events=4, history=4, window_ns=3 * SECOND, device=5)
AT = layout.areas()


@pytest.fixture(params=(ring._FEW, 0), ids=("few", "many"), autouse=True)
def kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both as rings of which few records are kept, and as others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "_FEW", request.param)
        yield


DEEDS = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 30)),
    st.tuples(st.just("event"), st.integers(1, 6)),
    st.tuples(st.just("device times"), st.integers(1, 9)),
    st.tuples(st.just("birth"), st.text(max_size=3)),
    st.tuples(st.just("words"), st.text(max_size=3)),
    st.tuples(st.just("stands"), st.sampled_from(("a.py:1", "b.py:2", "ä.py:3"))),
    st.tuples(st.just("rank"), st.integers(0, 3)),
    st.tuples(st.just("state"), st.sampled_from((layout.RUNNING, layout.FAILED))),
)


def do(writer: Writer, deed: str, what: object) -> None:
    if deed == "steps" and isinstance(what, int):
        write_steps(writer, what, first=writer.written)
    elif deed == "event" and isinstance(what, int):
        for number in range(what):
            writer.event(layout.NOTE, number, number, value=1.0, text=str(number))
    elif deed == "device times" and isinstance(what, int):
        write_device_times(writer, *range(1, what + 1), wall_ns=writer.written)
    elif deed == "birth":
        writer.birth({"told": what})
    elif deed == "words":
        writer.last_words({"told": what})
    elif deed == "stands":
        writer.words[layout.NOW_SITE // 8] = writer.site(str(what))
        writer.words[layout.NOW_SINCE // 8] = 1 + writer.written
    elif deed == "rank" and isinstance(what, int):
        writer.identify(rank=what, local_rank=what, world_size=4)
    elif isinstance(what, int):
        writer.state(what)


def contents_of(box: Box) -> tuple[object, ...]:
    """Everything a box tells, as what can be compared."""
    assert box.device_times is not None
    return (
        (box.identity, box.birth, box.last_words, box.state, box.now, box.events),
        [box.steps[name].tobytes() for name in STEP_DTYPE.names or ()],
        [box.device_times[name].tobytes() for name in DEVICE_DTYPE.names or ()],
        [box.history[name].tobytes() for name in HISTORY_DTYPE.names or ()],
        box.history_window_ns,
        (box.lost, box.overwritten, box.damage),
    )


@settings(max_examples=at_most(150), deadline=None)
@given(st.lists(st.lists(DEEDS, max_size=4), max_size=12))
def test_reading_on_is_like_reading_anew(turns: list[list[tuple[str, object]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer.open(Path(folder), rank=0, world_size=4, sizes=SMALL)
        with BoxReader(writer.path) as reader:
            before: list[tuple[Box, tuple[object, ...]]] = []
            for deeds in turns:
                for deed, what in deeds:
                    do(writer, deed, what)
                before.append((now := reader.poll(), contents_of(now)))
                assert before[-1][1] == contents_of(read_box(writer.path))
            # What was handed out stays what it was.
            assert all(contents_of(box) == then for box, then in before)
        writer.close()


def test_an_unchanged_box_is_hardly_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    writer = Writer.open(tmp_path, rank=0, sizes=Sizes(steps=1024))
    write_steps(writer, 1000)
    writer.birth({"told": "x" * 4000})
    with BoxReader(writer.path) as reader:
        reader.poll()
        assert sum(sizes) > 1000 * layout.STEP_SIZE
        sizes.clear()
        reader.poll()
        assert sum(sizes) < 2 * layout.HEADER_SIZE + 4100 + 3 * layout.EVENT_SIZE
        sizes.clear()
        write_steps(writer, 5, first=1000)
        assert len(reader.poll().steps) == 1005
        assert sum(sizes) < 3 * layout.HEADER_SIZE + 4100 + 12 * layout.STEP_SIZE


def test_history_is_read_on_only_where_it_is_asked_for(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(steps=64, window_ns=3 * SECOND))
    write_steps(writer, 20)
    with BoxReader(writer.path) as reader:
        first = reader.poll(whole=False)
        assert len(first.history), "what was never read is read in any case"
        write_steps(writer, 20, first=20)
        later = reader.poll(whole=False)
        assert len(later.steps) == 40
        assert later.history is first.history
        assert (
            contents_of(reader.poll()) == contents_of(read_box(writer.path)) != contents_of(later)
        )
    writer.close()


@settings(max_examples=at_most(100), deadline=None)
@given(st.lists(st.lists(DEEDS, max_size=4), max_size=12))
def test_all_else_is_never_old(turns: list[list[tuple[str, object]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer.open(Path(folder), rank=0, world_size=4, sizes=SMALL)
        with BoxReader(writer.path) as reader:
            for deeds in turns:
                for deed, what in deeds:
                    do(writer, deed, what)
                now, anew = reader.poll(whole=False), read_box(writer.path)
                # The header tells how long the last words are: others of one length are not seen.
                now = replace(now, history=anew.history, last_words=anew.last_words)
                assert contents_of(now) == contents_of(
                    replace(anew, history_window_ns=now.history_window_ns)
                )
        writer.close()


def test_damage_that_comes_later_is_counted_once(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=SMALL)
    with BoxReader(writer.path) as reader:
        write_steps(writer, 3)
        reader.poll()
        write_steps(writer, 3, first=3)
        overwrite(Path(writer.path), AT["steps"] + 4 * layout.STEP_SIZE + 40, b"\xff")
        for _ in range(2):
            found = reader.poll()
            assert found.steps["seq"].tolist() == [1, 2, 3, 4, 6]
            assert (found.lost, found.overwritten) == (1, 0)
        write_steps(writer, 2, first=6)
        assert reader.poll().steps["seq"].tolist() == [1, 2, 3, 4, 6, 7, 8]


def test_another_file_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=SMALL)
    with BoxReader(writer.path) as reader:
        assert not reader.replaced()
        os.replace(writer.path, tmp_path / "moved")
        assert not reader.replaced(), "it is gone, and what is open may still be read"
        (tmp_path / "moved").rename(tmp_path / "again")
        Path(writer.path).write_bytes((tmp_path / "again").read_bytes())
        assert reader.replaced()


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 20))
@settings(max_examples=at_most(60), deadline=None)
def test_only_the_newest_records_are_kept(news: list[int], most: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer.open(folder, rank=0, sizes=Sizes(steps=16))
        with BoxReader(writer.path) as reader:
            for count in news:
                write_steps(writer, count, first=writer.written)
                box = reader.poll(most=most)
                kept = min(writer.written, most, 16)
                assert [*box.steps["seq"]] == [
                    *range(writer.written - kept + 1, writer.written + 1)
                ]
                assert (box.lost, box.overwritten) == (0, writer.written - kept)
        writer.close()


def test_an_invalid_cursor_costs_no_records_that_are_kept(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, rank=0, sizes=Sizes(steps=16))
    write_steps(writer, 12)
    writer.words[layout.STEP_CURSOR // 8] = 4000
    with BoxReader(writer.path) as reader:
        assert [*reader.poll(most=5).steps["seq"]][-5:] == [8, 9, 10, 11, 12]
    writer.close()
