"""The writer in a rank: what it records, and that no trouble of its own reaches the training."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from math import inf, isnan, nan
from pathlib import Path
from types import SimpleNamespace

import mgpu_probes.inprocess as room
import numpy as np
import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.boxfile import Sizes
from mgpu_probes.inprocess.device_clock import DeviceStep

from mgpu_doctor.recording.box import Box, read_box
from tests.support.boxes import PHASES, SECOND, write_device_times, write_steps


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer.open(tmp_path / "boxes", rank=3, local_rank=1, world_size=8)


def content(writer: Writer) -> Box:
    return read_box(writer.path)


def test_a_step_is_read_back_as_it_was_written(writer: Writer) -> None:
    phases = (*(0.5 * number for number in range(9)), nan)
    writer.step(
        9,
        7,
        41,
        layout.SKIPPED,
        phases,
        32,
        4096,
        0.75,
        0.25,
        17,
        5,
        4,
        1.5,
        1 << 33,
        2,
        1,
        1 << 30,
    )
    (record,) = content(writer).steps.copy()
    assert record["phases"].tolist()[:9] == list(phases[:9])
    assert isnan(record["phases"][9])
    told = {name: record[name].item() for name in record.dtype.names if name != "phases"}
    assert told == {
        "seq": 1,
        "end_ns": 9,
        "wall_ns": 7,
        "step": 41,
        "flags": layout.SKIPPED,
        "samples": 32,
        "tokens": 4096,
        "loss": 0.75,
        "gc_s": 0.25,
        "group_seq": 17,
        "collectives": 5,
        "micro_batches": 4,
        "cpu_s": 1.5,
        "device_bytes": 1 << 33,
        "stage": 2,
        "group": 1,
        "resident_bytes": 1 << 30,
    }


def test_device_times_are_read_back_as_they_were_written(writer: Writer) -> None:
    phases = (0, 0, 1_500_000_000, 250_000_000, 0, 0, 0, 0, 0, 7)
    step = DeviceStep(41, 1_750_000_007, phases, 500_000_000, -1, loss=0.25, skipped=True)
    writer.device_step(step)
    times = content(writer).device_times
    assert times is not None
    ((_, number, wall, seconds, least, most, loss, flags),) = times.tolist()
    assert (number, wall, least) == (41, 1_750_000_007, 0.5)
    assert (loss, flags) == (0.25, layout.SKIPPED)
    assert isnan(most)
    assert seconds[layout.FORWARD] == 1.5
    unmeasured = (layout.TRANSFER, layout.WAIT, layout.COMMUNICATION)
    assert [number for number in range(10) if isnan(seconds[number])] == sorted(unmeasured)


def test_a_wait_that_hooks_may_have_missed_is_not_measured(writer: Writer) -> None:
    step = DeviceStep(1, 10, (0, 0, 4, 0, 3, 0, 0, 0, 0, 3), 0, 0)
    writer.device_step(step)
    writer.device_step(step, knows_wait=False)
    times = content(writer).device_times
    assert times is not None
    assert [isnan(wait) for wait in times["phases"][:, layout.WAIT]] == [False, True]


def test_the_ring_of_device_times_keeps_the_newest(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(device=8))
    write_device_times(writer, *range(1, 51, 2))
    times = content(writer).device_times
    assert times is not None
    assert times["step_seq"].tolist() == list(range(35, 51, 2))
    assert content(writer).damage == ()


def test_odd_device_times_switch_nothing_off(writer: Writer) -> None:
    writer.device_step(DeviceStep(2**80, -(2**80), (2**900, *[0] * 9), 0, 0))
    writer.device_step(DeviceStep(2, SECOND, (2**90, *[0] * 9), 0, 0))
    assert writer.active
    times = content(writer).device_times
    assert times is not None
    assert times["step_seq"].tolist()[-1] == 2


def test_the_ring_keeps_the_newest_and_counts_the_rest(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(steps=16))
    write_steps(writer, 50)
    box = content(writer)
    assert box.steps["step"].tolist() == list(range(34, 50))
    assert (box.lost, box.overwritten) == (0, 34)


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("samples", -3, 0),
        ("samples", 1 << 40, (1 << 32) - 1),
        ("collectives", 70_000, 65_535),
        ("wall_ns", nan, 0),
        ("step", -1, 0),
        ("stage", 1 << 20, (1 << 15) - 1),
        ("stage", -(1 << 20), -1),
        ("loss", 1e300, np.float32(3.4028234e38)),
        ("device_bytes", None, 0),
        ("resident_bytes", 1 << 70, (1 << 64) - 1),
        ("tokens", "many", 0),
    ],
)
def test_values_that_do_not_fit_are_clamped(
    writer: Writer, field: str, given: object, kept: object
) -> None:
    fields = {"end_ns": 5, "wall_ns": 5, "step": 0, "flags": 0, "phases": PHASES} | {field: given}
    writer.step(**fields)  # type: ignore[arg-type] # the wrong types are the test
    (record,) = content(writer).steps.copy()
    assert record[field] == kept
    assert writer.active


def test_a_step_of_an_impossible_time_is_clamped_and_not_believed(writer: Writer) -> None:
    writer.step(5, 10**30, 0, 0, PHASES)
    assert len(content(writer).steps) == 0
    writer.step(6, 5, 1, 0, PHASES)
    assert content(writer).steps["step"].tolist() == [1]


def test_phases_too_few_or_too_many_or_odd_are_not_measured(writer: Writer) -> None:
    writer.step(1, 1, 0, 0, (0.5,))
    writer.step(2, 1, 1, 0, (0.5,) * 20)
    writer.step(3, 1, 2, 0, ("x", inf, *[0.5] * 8))  # type: ignore[arg-type] # that is the test
    few, many, odd = content(writer).steps["phases"]
    assert few[0] == 0.5
    assert np.isnan(few[1:]).all()
    assert (many == 0.5).all()
    assert np.isnan(odd[:2]).all()


def test_the_history_sums_what_the_ring_forgets(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(steps=32, window_ns=10 * SECOND))
    write_steps(writer, 100)
    writer.leave(0)
    box = content(writer)
    assert box.history_window_ns == 10 * SECOND
    assert box.history["micro_batches"].sum() == 100
    assert box.history["wall_ns"].sum() == 100 * SECOND
    assert box.history["samples"].sum() == 3200
    assert box.history["step"][-1] == 99
    assert np.isnan(box.history["phases"][:, layout.COMMUNICATION]).all()
    assert box.history["phases"][:, layout.FORWARD].sum() == 50


def test_a_phase_that_some_steps_lack_is_summed_over_the_others(writer: Writer) -> None:
    for number, seconds in enumerate((1.0, nan, 2.0)):
        writer.step(number + 1, 1, number, 1 << number, (seconds,) * 10, loss=seconds)
    writer.step(4, 1, 3, 0, (nan,) * 10, loss=nan)
    writer.leave(0)
    (window,) = content(writer).history
    assert window["phases"][layout.INPUT] == 3.0
    assert window["loss"] == 2.0
    assert window["flags"] == 0b111


def test_windows_double_when_an_area_is_full_and_nothing_is_lost(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(history=8, window_ns=SECOND))
    for turn in range(10):
        write_steps(writer, 25, first=turn * 25)
        box = content(writer)
        assert len(box.history) <= 8
        assert np.all(np.diff(box.history["end_ns"]) > 0)
    writer.leave(0)
    box = content(writer)
    assert box.history_window_ns == 64 * SECOND
    assert box.history["micro_batches"].sum() == 250
    assert box.history["wall_ns"].sum() == 250 * SECOND
    windows = box.history["end_ns"] // box.history_window_ns
    assert len(windows) - len(set(windows.tolist())) <= 1, "one may be split where they doubled"


def test_steps_rarer_than_the_window_still_fit(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(history=4, window_ns=SECOND))
    write_steps(writer, 40, spacing_ns=100 * SECOND)
    writer.leave(0)
    assert content(writer).history["micro_batches"].sum() == 40


def test_more_steps_in_a_window_than_sixteen_bits_count(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, sizes=Sizes(steps=256))
    write_steps(writer, 70_000, spacing_ns=1000)
    writer.leave(0)
    assert content(writer).history["micro_batches"].tolist() == [70_000]


def test_facts_are_merged_and_the_largest_are_dropped(writer: Writer) -> None:
    writer.birth({"framework": "torch", "rank_hosts": list(range(1000)) * 10})
    writer.birth({"strategy": "ddp", "loss": nan, "module": object(), "note": "x" * 100_000})
    birth = dict(content(writer).birth)
    assert (birth["framework"], birth["strategy"]) == ("torch", "ddp")
    assert birth["loss"] is None
    assert birth["module"] == "<object>"
    assert birth["truncated"] == ["note"]
    assert "characters cut" in birth["note"]
    writer.birth({f"list{number}": list(range(1000)) for number in range(9)})
    assert content(writer).birth["framework"] == "torch"
    assert any(name.startswith("list") for name in content(writer).birth["truncated"])


def test_facts_that_refer_to_themselves_end(writer: Writer) -> None:
    endless: dict[str, object] = {}
    endless["self"] = endless
    writer.birth({"config": endless, "huge": 10**5000})
    assert "config" in content(writer).birth
    assert writer.active


def test_last_words_keep_both_ends_of_a_traceback(writer: Writer) -> None:
    trace = "first line\n" + "middle\n" * 50_000 + "ValueError: \udcff the end"
    writer.last_words({"type": "ValueError"})
    writer.last_words({"traceback": trace})
    words = content(writer).last_words
    assert words["type"] == "ValueError"
    assert words["traceback"].startswith("first line")
    assert words["traceback"].endswith("the end")


def test_a_call_site_is_stored_once(writer: Writer) -> None:
    word = writer.site("all_reduce train.py:87")
    assert writer.site("all_gather ü.py:1") != word
    assert writer.site("all_reduce train.py:87") == word
    writer.words[layout.NOW_SITE // 8] = word
    writer.words[layout.NOW_SINCE // 8] = 1
    now = content(writer).now
    assert now is not None
    assert now.site == "all_reduce train.py:87"


def test_call_sites_beyond_the_room_are_none(writer: Writer) -> None:
    words = [writer.site(f"{number} " + "x" * 1000) for number in range(100)]
    assert words[0] > 0
    assert words[-1] == 0
    assert writer.active


def test_an_events_text_is_cut_between_characters(writer: Writer) -> None:
    writer.event(layout.GC, 5, 1, 7, 2.0, "ü" * 200)
    (event,) = content(writer).events
    assert event.text == "ü" * (layout.EVENT_TEXT_SIZE // 2)
    assert (event.kind, event.start_ns, event.step, event.duration_ns) == ("gc", 5, 1, 7)


def test_events_from_several_threads_are_all_kept(writer: Writer) -> None:
    def tell() -> None:
        for number in range(200):
            writer.event(layout.NOTE, number)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(content(writer).events) == 800


def test_a_rank_learned_late_replaces_the_unknown(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, attempt=2)
    assert (content(writer).identity.rank, content(writer).identity.attempt) == (None, 2)
    writer.identify(5, 1, 8, stage=1, stages=4)
    identity = content(writer).identity
    assert (identity.rank, identity.local_rank, identity.world_size) == (5, 1, 8)
    assert (identity.stage, identity.stages, identity.attempt) == (1, 4, 2)
    assert identity.pid == os.getpid()
    assert identity.host == os.uname().nodename


def test_the_longest_name_of_a_host_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exits are joined with ranks by it."""
    longest = "h" * 64
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=longest))
    assert content(Writer.open(tmp_path)).identity.host == longest


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (-1, 255), (None, None)])
def test_leaving_says_how(writer: Writer, code: int | None, expected: int | None) -> None:
    assert content(writer).state == "joining"
    writer.state(layout.RUNNING)
    assert content(writer).state == "running"
    writer.leave(code)
    box = content(writer)
    assert (box.state, box.exit_code) == ("ended", expected)
    assert box.ended_ns is not None


def test_a_failure_stays_a_failure_when_leaving(writer: Writer) -> None:
    writer.state(layout.FAILED)
    writer.leave(1)
    assert content(writer).state == "exception"


def test_switching_off_is_reported_and_ends_the_writing(writer: Writer) -> None:
    write_steps(writer, 3)
    writer.switch_off("the user's torch is too old")
    write_steps(writer, 3)
    box = content(writer)
    assert (box.state, box.last_words["off"]) == ("off", "the user's torch is too old")
    assert len(box.steps) == 3
    assert not writer.active


def test_trouble_of_its_own_switches_it_off_and_is_reported(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(writer._history, "add", broken)
    write_steps(writer, 3)
    assert not writer.active
    assert content(writer).last_words["off"] == "MemoryError: no room"


def test_a_closed_map_never_raises(writer: Writer) -> None:
    writer._bytes.release()
    writer._crcs.release()
    writer._words_of_box.release()
    writer._box.close()
    write_steps(writer, 2)
    writer.event(layout.NOTE, 0)
    writer.leave(0)
    assert not writer.active
    assert writer.site("x") == 0


def test_files_are_private_and_complete_at_once(writer: Writer) -> None:
    path = Path(writer.path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_size == layout.areas()["end"]
    assert path.stat().st_blocks * 512 >= layout.areas()["end"], "a sparse box can SIGBUS"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_second_box_of_the_same_process_takes_another_name(tmp_path: Path) -> None:
    first, second = Writer.open(tmp_path, rank=0), Writer.open(tmp_path, rank=1)
    assert first.path != second.path
    assert content(first).identity.rank == 0
    assert content(second).identity.rank == 1
    assert Path(second.path).name == f"{Path(first.path).stem}.1.box"


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Writer.open(tmp_path / "file" / "boxes")


def test_a_symlink_in_place_is_not_followed(tmp_path: Path) -> None:
    boxes, victim = tmp_path / "boxes", tmp_path / "victim"
    probe = Writer.open(boxes)
    Path(probe.path).unlink()
    victim.write_text("precious")
    Path(probe.path).symlink_to(victim)
    (boxes / f".{Path(probe.path).stem}.1.tmp").symlink_to(victim)
    writer = Writer.open(boxes)
    assert Path(writer.path).name.endswith(".2.box")
    assert victim.read_text() == "precious"


FULL_DISK = """
import json, os, resource, sys
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.boxfile import Sizes
folder, room = sys.argv[1], int(sys.argv[2])
early = Writer.open(folder + "/early")
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
try:
    Writer.open(folder + "/late")
    told = None
except OSError as error:
    told = error.errno
for number in range(20000):
    early.step(number, 1, number, 0, (0.5,) * 10)
print(json.dumps([told, early.active, os.listdir(folder + "/late")]))
"""


@pytest.mark.parametrize("room", [0, 4096, layout.areas()["end"] - 1])
def test_without_room_on_the_disk_opening_fails_and_open_boxes_go_on(
    tmp_path: Path, room: int
) -> None:
    """A limit on file sizes refuses blocks as a full disk does, and needs no privileges."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(room)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    told, active, left = json.loads(ran.stdout)
    assert isinstance(told, int)
    assert active
    assert left == []


def test_a_forked_child_leaves_its_parents_box_alone(writer: Writer) -> None:
    write_steps(writer, 2)
    before = Path(writer.path).read_bytes()
    child = os.fork()
    if child == 0:
        write_steps(writer, 5)
        write_device_times(writer, 1)
        writer.words[layout.NOW_PHASE // 8] = 99
        writer.state(layout.FAILED)
        writer.leave(1)
        writer.switch_off("child")
        os._exit(int(writer.active))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Path(writer.path).read_bytes() == before
    write_steps(writer, 1, first=2)
    assert len(content(writer).steps) == 3


def test_a_forked_child_may_open_a_box_of_its_own(writer: Writer) -> None:
    folder = Path(writer.path).parent
    child = os.fork()
    if child == 0:
        own = Writer.open(folder, rank=4)
        write_steps(own, 4)
        os._exit(int(not own.active))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (other,) = (path for path in folder.iterdir() if str(path) != writer.path)
    assert read_box(other).identity.pid == child
    assert len(read_box(other).steps) == 4


def test_it_works_under_the_private_package_name(tmp_path: Path) -> None:
    """So is the injected probe loaded: nobody's own `mgpu_probes` may be in its way."""
    (source,) = room.__path__
    code = (
        "import importlib.util as u, sys\n"
        f"spec = u.spec_from_file_location('_mgpu_probe', {source + '/__init__.py'!r},"
        f" submodule_search_locations=[{source!r}])\n"
        "package = u.module_from_spec(spec); sys.modules['_mgpu_probe'] = package\n"
        "from _mgpu_probe.blackbox import Writer\n"
        f"Writer.open({str(tmp_path)!r}).step(1, 1, 0, 0, (0.5,) * 10)\n"
        "assert 'mgpu_probes' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)
    (box,) = tmp_path.iterdir()
    assert len(read_box(box).steps) == 1
    assert importlib.util.find_spec("_mgpu_probe") is None
