"""The reader of black boxes: whole, torn, cut off, live and hostile ones."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.boxfile import Sizes

from mgpu_doctor.recording.box import DEVICE_DTYPE, STEP_DTYPE, BadBox, Box, BoxReader, read_box
from tests.support.boxes import (
    GEOMETRY_AT,
    finished,
    overwrite,
    set_geometry,
    set_word,
    sound_records,
    write_steps,
)
from tests.support.seeds import at_most

AT = layout.areas()


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return finished(tmp_path)


def test_everything_in_a_box(box: Path) -> None:
    found = read_box(box)
    assert found.path == str(box)
    assert (found.identity.rank, found.identity.world_size, found.identity.stage) == (1, 2, None)
    assert found.birth == {"framework": "torch"}
    assert found.steps["seq"].tolist() == list(range(1, 21))
    assert found.device_times is not None
    assert found.device_times["step_seq"].tolist() == [2, 6, 10, 14, 18]
    assert [(event.kind, event.text) for event in found.events] == [("checkpoint", "model.pt")]
    assert found.now is not None
    assert (found.now.phase, found.now.step, found.now.group_seq) == ("wait", 19, 38)
    assert found.now.site == "all_reduce train.py:87"
    assert (found.state, found.exit_code) == ("exception", 1)
    assert found.last_words["message"] == "bad loss"
    assert (found.lost, found.overwritten, found.damage) == (0, 0, ())


def test_the_dtype_is_the_layout() -> None:
    values = (1, 2, 3, 4, 5, *range(10), 6, 7, 8.0, 9.0, 10, 11, 12, 13.0, 14, 15, 16, 17, 18)
    (record,) = np.frombuffer(layout.STEP.pack(*values), STEP_DTYPE)
    assert record["phases"].tolist() == list(range(10))
    assert [record[name] for name in STEP_DTYPE.names or () if name != "phases"] == [
        *(1, 2, 3, 4, 5),
        *range(6, 18),
    ]


def test_steps_handed_out_do_not_change(box: Path) -> None:
    steps = read_box(box).steps
    with pytest.raises(ValueError, match="read-only"):
        steps["step"][0] = 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "still being created or empty"),
        (bytes(8192), "still being created or empty"),
        (b"\x7fELF" + bytes(8192), "not a black box"),
        (layout.MAGIC, "its header is truncated"),
        (layout.MAGIC[:3], "its header is truncated"),
    ],
)
def test_what_is_no_box_is_reported_in_a_sentence(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "x.box"
    path.write_bytes(content)
    with pytest.raises(BadBox, match=message):
        read_box(path)


def test_a_link_a_pipe_and_a_folder_are_no_boxes(box: Path) -> None:
    link, pipe = box.with_name("link.box"), box.with_name("pipe.box")
    link.symlink_to(box)
    os.mkfifo(pipe)
    with pytest.raises(BadBox, match="symbolic link"):
        read_box(link)
    with pytest.raises(BadBox, match="no regular file"):
        read_box(pipe)
    with pytest.raises(BadBox, match="no regular file"):
        read_box(box.parent)
    with pytest.raises(FileNotFoundError):
        read_box(box.with_name("none.box"))


@pytest.mark.parametrize(
    ("offset", "raw", "message"),
    [
        (8, struct.pack("=H", layout.VERSION_MAJOR + 1), "newer version .* upgrade"),
        (8, struct.pack("=H", 0), "no longer read"),
        (12, b"\x01\x02\x03\x04", "another byte order"),
    ],
)
def test_boxes_of_others(box: Path, offset: int, raw: bytes, message: str) -> None:
    if sys.byteorder == "big":
        raw = raw[::-1] if len(raw) == 4 else raw
    overwrite(box, offset, raw)
    with pytest.raises(BadBox, match=message):
        read_box(box)


def test_a_newer_minor_version_is_read(box: Path) -> None:
    overwrite(box, 10, struct.pack("=H", layout.VERSION_MINOR + 1))
    assert read_box(box).identity.version == (layout.VERSION_MAJOR, layout.VERSION_MINOR + 1)
    assert len(read_box(box).steps) == 20


@pytest.mark.parametrize("damaged", [1, 7, 20])
def test_a_damaged_record_is_left_out_and_counted(box: Path, damaged: int) -> None:
    overwrite(box, AT["steps"] + (damaged - 1) * layout.STEP_SIZE + 40, b"\xff")
    found = read_box(box)
    assert found.steps["seq"].tolist() == [seq for seq in range(1, 21) if seq != damaged]
    assert (found.lost, found.overwritten) == (1, 0)


def test_a_record_of_the_last_lap_does_not_stand_in_for_a_damaged_one(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(steps=8))
    write_steps(writer, 8)
    path = Path(writer.path)
    old = path.read_bytes()[AT["steps"] : AT["steps"] + layout.STEP_SIZE]
    write_steps(writer, 6, first=8)
    overwrite(path, AT["steps"], old)
    found = read_box(path)
    assert found.steps["seq"].tolist() == [7, 8, 10, 11, 12, 13, 14]
    assert (found.lost, found.overwritten) == (1, 6)


def test_a_record_beyond_the_cursor_counts(box: Path) -> None:
    """A writer killed after the record and before the cursor."""
    set_word(box, layout.STEP_CURSOR, 19)
    found = read_box(box)
    assert found.steps["seq"][-1] == 20
    assert found.lost == 0


@pytest.mark.parametrize("cursor", [0, 3, 1 << 40, (1 << 64) - 1])
def test_a_wrong_cursor_hides_no_record(box: Path, cursor: int) -> None:
    set_word(box, layout.STEP_CURSOR, cursor)
    found = read_box(box)
    assert len(found.steps) == 20
    assert 0 <= found.lost <= layout.STEP_CAPACITY


@pytest.mark.parametrize("size", [4096, AT["strings"], AT["steps"] + 128 * 5 + 60, AT["end"] - 1])
def test_a_cut_off_box_gives_what_is_there(box: Path, size: int) -> None:
    os.truncate(box, size)
    found = read_box(box)
    whole = max(0, min(20, (size - AT["steps"]) // layout.STEP_SIZE))
    assert len(found.steps) == whole
    assert found.lost == 20 - whole
    assert (found.birth == {}) == (size == 4096)


def test_a_death_while_the_rank_changed_leaves_it_unknown(box: Path) -> None:
    set_word(box, layout.GENERATION_FIRST, 9)
    found = read_box(box)
    assert found.identity.rank is None
    assert found.damage == ("the process ended while it changed its rank",)
    assert len(found.steps) == 20


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("header", 64, "header"),
        ("step_capacity", 0, "0 steps"),
        ("step_capacity", 1 << 31, "steps"),
        ("event_capacity", 1 << 31, "more events"),
        ("history_capacity", 1 << 31, "more events or history"),
        ("words_size", 1 << 31, "more text"),
        ("strings_size", 1 << 31, "more text"),
        ("steps", 512, "overlap"),
        ("events", AT["steps"], "overlap"),
        ("birth_slot", 32 * 1024, "overlap"),
    ],
)
def test_hostile_sizes_are_refused(box: Path, name: str, value: int, message: str) -> None:
    set_geometry(box, name, value)
    with pytest.raises(BadBox, match=message):
        read_box(box)


def without_device_times(box: Path) -> None:
    """As version 1.2 wrote it."""
    for offset in (layout.DEVICE_AREA, layout.DEVICE_CURSOR, layout.DEVICE_RECORDS):
        set_word(box, offset, 0)
    overwrite(box, 10, struct.pack("=H", 2))
    os.truncate(box, AT["device"])


def test_a_box_of_version_1_2_has_no_device_times(box: Path) -> None:
    before = read_box(box)
    without_device_times(box)
    found = read_box(box)
    assert found.device_times is None
    assert found.steps["seq"].tolist() == before.steps["seq"].tolist()
    assert (found.lost, found.damage) == (0, ())


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (layout.DEVICE_AREA, 64, "overlap"),
        (layout.DEVICE_AREA, AT["steps"], "overlap"),
        (layout.DEVICE_AREA, 1 << 32, "more device times"),
        (layout.DEVICE_AREA, (1 << 64) - 1, "more device times"),
        (layout.DEVICE_RECORDS, 1 << 17, "more device times"),
        (layout.DEVICE_RECORDS, (1 << 64) - 1, "more device times"),
    ],
)
def test_hostile_places_of_device_times_are_refused(
    box: Path, offset: int, value: int, message: str
) -> None:
    set_word(box, offset, value)
    with pytest.raises(BadBox, match=message):
        read_box(box)


@pytest.mark.parametrize("cursor", [0, 3, 6, 2048, 1 << 40, (1 << 64) - 1])
def test_a_wrong_cursor_hides_no_device_times(box: Path, cursor: int) -> None:
    set_word(box, layout.DEVICE_CURSOR, cursor)
    found = read_box(box)
    assert found.device_times is not None
    assert found.device_times["step_seq"].tolist() == [2, 6, 10, 14, 18]
    assert (len(found.damage) == 1) == (cursor > 5)


def test_damaged_device_times_are_left_out(box: Path) -> None:
    overwrite(box, AT["device"] + layout.DEVICE_SIZE + 30, b"\xff")
    found = read_box(box)
    assert found.device_times is not None
    assert found.device_times["step_seq"].tolist() == [2, 10, 14, 18]
    assert found.damage == ("1 records of device times are damaged",)


@pytest.mark.parametrize("area", [(1 << 32) - 1, AT["end"]])
def test_device_times_beyond_the_file_are_damage(box: Path, area: int) -> None:
    set_word(box, layout.DEVICE_AREA, area)
    found = read_box(box)
    assert found.device_times is not None
    assert not len(found.device_times)
    assert found.damage == ("5 records of device times are damaged",)
    assert len(found.steps) == 20


def test_impossible_device_times_are_not_believed(box: Path) -> None:
    phases = [-1.0, np.inf, 3e38, np.nan, 0.5, *[0.0] * 5]
    hostile: tuple[dict[str, object], ...] = (
        {"step_seq": 0, "wall_ns": 5},
        {"step_seq": 1, "wall_ns": -5},
        {"step_seq": 1, "wall_ns": 1 << 62},
        {"step_seq": (1 << 64) - 1, "wall_ns": 5, "phases": [phases]},
        {"step_seq": 1, "wall_ns": 5, "least_lead": -np.inf, "most_lead": 3e38},
    )
    overwrite(box, AT["device"], sound_records(*hostile, dtype=DEVICE_DTYPE))
    found = read_box(box).device_times
    assert found is not None
    assert found["seq"].tolist() == [4, 5]
    assert np.isnan(found["phases"][0]).tolist() == [True] * 4 + [False] * 6
    assert np.isnan([found["least_lead"][1], found["most_lead"][1]]).all()


def test_an_area_beyond_the_file_is_empty(box: Path) -> None:
    set_geometry(box, "steps", (1 << 32) - 1)
    found = read_box(box)
    assert len(found.steps) == 0
    assert found.lost == 20
    assert found.birth == {"framework": "torch"}


@pytest.mark.parametrize("name", ["event_capacity", "history_capacity"])
def test_a_writer_may_go_without(box: Path, name: str) -> None:
    set_geometry(box, name, 0)
    found = read_box(box)
    assert len(found.steps) == 20
    assert (found.events == ()) == (name == "event_capacity")
    assert (len(found.history) == 0) == (name == "history_capacity")


def test_impossible_times_are_not_believed(box: Path) -> None:
    hostile = sound_records(
        {"wall_ns": -5, "end_ns": 1},
        {"wall_ns": 5, "end_ns": -1},
        {"wall_ns": 2**62, "end_ns": 1},
        {"wall_ns": 5, "end_ns": 2**63 - 1},
        {"wall_ns": 5, "end_ns": 1, "phases": [[-1.0, np.inf, 3e38, np.nan, 0.5, *[0.0] * 5]]},
        {"wall_ns": 5, "end_ns": 1, "gc_s": 3e38, "cpu_s": -np.inf},
    )
    overwrite(box, AT["steps"], hostile)
    found = read_box(box)
    assert found.steps["seq"][:2].tolist() == [5, 6]
    assert found.lost == 4
    assert np.isnan(found.steps["phases"][0]).tolist() == [True] * 4 + [False] * 6
    assert np.isnan([found.steps["gc_s"][1], found.steps["cpu_s"][1]]).all()


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 16_000,
        b'{"a":' * 3000,
        b'{"x": "\xff\xfe"}',
        b"[1, 2]",
        b'{"x": ' + b"9" * 10_000 + b"}",
        b"\x00" * 50,
        b'{"x": ',
    ],
)
def test_json_bombs_and_broken_json_are_damage(box: Path, raw: bytes) -> None:
    overwrite(box, AT["birth"] + layout.BIRTH_SLOT_SIZE, raw)
    set_word(box, layout.BIRTH_SLOT, 1 << 32 | len(raw))
    found = read_box(box)
    assert found.birth == {}
    assert found.damage == ("the process metadata cannot be read",)
    assert found.last_words["type"] == "ValueError"


def test_json_keeps_the_writers_own_bounds(box: Path) -> None:
    raw = b'{"deep": ' + b"[" * 500 + b"]" * 500 + b', "no": NaN, "far": 1e999, "n": -Infinity}'
    overwrite(box, AT["birth"] + layout.BIRTH_SLOT_SIZE, raw)
    set_word(box, layout.BIRTH_SLOT, 1 << 32 | len(raw))
    birth = read_box(box).birth
    assert (birth["no"], birth["far"], birth["n"]) == (None, None, None)
    assert len(json.dumps(birth)) < 200


@pytest.mark.parametrize("published", [7 << 32 | 5, 1 << 32 | 0xFFFFFFFF, (1 << 64) - 1])
def test_a_birth_outside_its_slots_is_damage(box: Path, published: int) -> None:
    set_word(box, layout.BIRTH_SLOT, published)
    assert read_box(box).damage == ("the process metadata cannot be read",)


@pytest.mark.parametrize("site", [5, 60_000, layout.STRINGS_SIZE, (1 << 64) - 1])
def test_a_site_outside_the_strings_is_none(box: Path, site: int) -> None:
    overwrite(box, AT["strings"] + 4, b"\xff\xff")
    set_word(box, layout.NOW_SITE, site)
    now = read_box(box).now
    assert now is not None
    assert now.site is None


def test_texts_that_are_no_utf8_are_shown_as_such(box: Path) -> None:
    overwrite(box, AT["strings"] + 2, b"\xff\xfe\x00")
    overwrite(box, layout.IDENTITY.size - 64, b"\xff" * 64)
    found = read_box(box)
    assert found.now is not None
    assert found.now.site is not None
    assert found.now.site.startswith("��")
    assert found.identity.host == "�" * 64


def test_unknown_codes_of_a_newer_writer(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path)
    writer.event(77, 1, text="new")
    writer.words[layout.STATE // 8] = 77
    writer.words[layout.NOW_PHASE // 8] = 77
    writer.words[layout.NOW_SINCE // 8] = 1
    found = read_box(writer.path)
    assert (found.events[0].kind, found.state, found.now) == ("event 77", "unknown", None)


def test_a_history_that_points_nowhere_is_empty(box: Path) -> None:
    assert len(read_box(box).history) == 3
    for offset, value in (
        (layout.HISTORY_ACTIVE, 2),
        (layout.HISTORY_CURSOR[0], 1 << 40),
        (layout.HISTORY_WINDOW[0], 0),
    ):
        before = box.read_bytes()[offset : offset + 8]
        set_word(box, offset, value)
        assert len(read_box(box).history) == 0
        overwrite(box, offset, before)


def test_a_writer_may_count_the_steps_of_a_window_in_sixteen_bits(box: Path) -> None:
    raw = bytearray(sound_records({"end_ns": 1, "micro_batches": 12}))
    overwrite(box, AT["history"], bytes(raw))
    assert read_box(box).history["micro_batches"][0] == 12


def test_a_live_box_is_read_on(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(steps=16, events=4))
    with BoxReader(writer.path) as reader:
        assert len(reader.poll().steps) == 0
        views = []
        for turn in range(40):
            write_steps(writer, turn % 7, first=writer.written)
            writer.event(layout.NOTE, turn, turn, value=1.0)
            writer.birth({"turn": turn})
            writer.last_words({"turn": turn})
            live = reader.poll()
            views.append((live.steps, live.steps["seq"].tolist()))
            assert same(live, read_box(writer.path))
        assert live.birth == live.last_words == {"turn": 39}
        assert all(view["seq"].tolist() == copy for view, copy in views)


def same(live: Box, fresh: Box) -> bool:
    """Whether both tell the same. The live one may have kept more of the ring."""
    return (
        live.steps["seq"].tolist() == fresh.steps["seq"].tolist()
        and live.steps["step"].tolist() == fresh.steps["step"].tolist()
        and (live.lost, live.overwritten) == (fresh.lost, fresh.overwritten)
        and live.events == fresh.events
        and live.history["step"].tolist() == fresh.history["step"].tolist()
        and (live.birth, live.last_words) == (fresh.birth, fresh.last_words)
    )


def test_a_box_that_is_cut_off_while_it_is_read(box: Path) -> None:
    with BoxReader(box) as reader:
        assert len(reader.poll().steps) == 20
        os.truncate(box, 1000)
        with pytest.raises(BadBox, match="truncated"):
            reader.poll()


TORTURE = """
import sys, time
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.boxfile import Sizes
from mgpu_probes.inprocess.device_clock import DeviceStep
writer = Writer.open(sys.argv[1], sizes=Sizes(steps=64, events=8, history=8,
                     window_ns=20_000, device=16))
print(writer.path, flush=True)
for number in range(50_000):
    writer.step(time.monotonic_ns(), 1, number, 0, (float(number),) * 10)
    if number % 4 == 0:
        writer.device_step(DeviceStep(number + 1, number, (number,) * 10, number, number))
    if number % 32 == 0:
        writer.event(layout.NOTE, number, number, text=str(number))
        writer.birth({"number": number, "text": "x" * (number % 999)})
        writer.identify(number, number, number)
"""


def test_reading_while_a_process_writes_at_full_speed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TORTURE, str(tmp_path)]
    polls = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        with BoxReader(path) as reader:
            while process.poll() is None:
                for live in (reader.poll(), read_box(path)):
                    coherent(live)
                polls += 1
            last = reader.poll()
    assert process.returncode == 0
    assert polls > 0
    assert last.steps["step"][-1] == 49_999
    assert last.lost == 0


def coherent(live: Box) -> None:
    steps = live.steps
    assert live.lost == 0
    assert np.all(steps["step"] + 1 == steps["seq"])
    assert np.all(steps["phases"] == steps["step"][:, None])
    times = live.device_times
    assert times is not None
    assert np.all(times["step_seq"] == times["seq"] * 4 - 3)
    assert np.all(times["wall_ns"] + 1 == times["step_seq"])
    assert all(event.text == str(event.step) for event in live.events)
    assert np.all(live.history["wall_ns"] == live.history["micro_batches"])
    assert "the process metadata cannot be read" not in live.damage
    assert live.identity.rank == live.identity.world_size


@pytest.mark.slow
def test_nothing_committed_is_lost_in_hundreds_of_kills() -> None:
    """The benchmark's own number is 1,200."""
    command = [sys.executable, "-m", "benchmarks.blackbox_kills", "--kills", "120"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    document = json.loads(ran.stdout)
    assert document["wrong"] == {}, document
    assert document["records_checked"] > 10_000
    assert ran.returncode == 0


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("hostile"), steps=300)


def harmless(pristine: Path, content: bytes) -> None:
    """Reads without any other end than a Box, BadBox or OSError, in bounded memory."""
    path = pristine.with_name("hostile.box")
    path.write_bytes(content)
    tracemalloc.start()
    with suppress(BadBox, OSError):
        read_box(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


OFFSETS = st.one_of(
    st.integers(0, 255),
    st.sampled_from(sorted(GEOMETRY_AT.values())),
    st.integers(64, 203).map(lambda number: number * 8),
    st.integers(0, AT["end"] - 9),
)
RAW = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.integers(0, (1 << 32) - 1).map(lambda number: struct.pack("=I", number)),
    st.integers(0, (1 << 64) - 1).map(lambda number: struct.pack("=Q", number)),
)
HOSTILE = settings(
    max_examples=at_most(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@HOSTILE
@given(changes=st.lists(st.tuples(OFFSETS, RAW), min_size=1, max_size=12))
def test_random_changes_do_no_harm(pristine: Path, changes: list[tuple[int, bytes]]) -> None:
    content = pristine.read_bytes()
    changed = bytearray(content)
    for offset, raw in changes:
        changed[offset : offset + len(raw)] = raw
    harmless(pristine, bytes(changed))


@HOSTILE
@given(
    prefix=st.binary(max_size=64),
    size=st.one_of(st.integers(0, 9000), st.integers(0, AT["end"])),
)
def test_random_cuts_and_prefixes_do_no_harm(pristine: Path, prefix: bytes, size: int) -> None:
    content = pristine.read_bytes()
    harmless(pristine, prefix + content[:size])


@HOSTILE
@given(tail=st.binary(max_size=4096))
def test_noise_behind_a_right_beginning_does_no_harm(pristine: Path, tail: bytes) -> None:
    content = pristine.read_bytes()
    harmless(pristine, content[:208] + tail + content[208 + len(tail) : 8192])


def test_the_newest_step_is_read_without_the_others(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, rank=0, sizes=Sizes(steps=8))
    with BoxReader(writer.path) as reader:
        assert reader.newest_step() is None
        write_steps(writer, 5)
        assert reader.newest_step() == 4
        write_steps(writer, 20, first=5)  # more than the ring holds
        assert reader.newest_step() == 24
        assert reader.poll().steps["step"].tolist() == list(range(17, 25))
        write_steps(writer, 1, first=25)
        newest = AT["steps"] + (26 - 1) % 8 * layout.STEP_SIZE
        overwrite(Path(writer.path), newest + 20, b"\xff")
        assert reader.newest_step() is None, "it is damaged"
        write_steps(writer, 1, first=26)
        assert [reader.newest_step(), reader.newest_step()] == [26, 26]
    writer.close()
