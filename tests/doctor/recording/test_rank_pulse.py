"""The pulse of a box changes exactly when its rank makes progress."""

from __future__ import annotations

from pathlib import Path

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer

from mgpu_doctor.recording.rank_pulse import pulses
from tests.support.boxes import SECOND, write_steps


def test_a_step_or_a_mark_changes_it(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, rank=0, local_rank=0, world_size=2)
    first = pulses(tmp_path)
    assert len(first) == 1
    assert pulses(tmp_path) == first
    write_steps(writer, 1)
    second = pulses(tmp_path)
    assert second != first
    writer.words[layout.NOW_PHASE // 8] = layout.WAIT
    writer.words[layout.NOW_SINCE // 8] = 19 * SECOND
    third = pulses(tmp_path)
    assert third != second
    (pulse,) = third.values()
    assert (pulse.steps, pulse.phase, pulse.over) == (1, "wait", False)
    writer.leave(0)
    (pulse,) = pulses(tmp_path).values()
    assert pulse.over


def test_what_is_no_box_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "short.box").write_bytes(b"x")
    (tmp_path / "link.box").symlink_to("/etc/passwd")
    (tmp_path / "folder.box").mkdir()
    assert pulses(tmp_path) == {}
    assert pulses(tmp_path / "gone") == {}
