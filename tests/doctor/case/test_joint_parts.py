"""Recordings of several nodes as one case: what has ended on which host, and what is not known."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.inprocess.blackbox import Writer

from mgpu_doctor.case.job_snapshots import JobSnapshot, decode_job_snapshot
from mgpu_doctor.case.joint_parts import join_looks
from mgpu_doctor.case.model import Outcome, Rank, State
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.recording.joint_recordings import FRESH, JOINT
from mgpu_doctor.recording.layout import END, HOSTS, INFO, SCHEMA, boxes
from tests.support.boxes import write_steps

GOOD = {"exit_code": 0, "signal": None, "ended": 2000.0}
BAD = {"exit_code": 1, "signal": None, "ended": 2100.0}
Record = Callable[..., Path]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Writes a recording with a part and a rank for each host. `ends`: host -> its `end.json`;
    None: it has none. `end`: that of the job."""

    def write(name: str, ends: Mapping[str, Any], end: Mapping[str, Any] | None = None) -> Path:
        folder = tmp_path / name
        for host, its_end in ends.items():
            place = boxes(folder, host)
            place.mkdir(parents=True)
            with monkeypatch.context() as patch:
                patch.setattr(os, "uname", lambda host=host: SimpleNamespace(nodename=host))
                rank = int(host[-1])
                with closing(Writer.open(place, rank=rank, local_rank=0, world_size=2)) as writer:
                    write_steps(writer, 10)
            info = {"schema": SCHEMA, JOINT: "key", "host": host, "started": 1000.0}
            for at in (place.parent, folder):
                (at / INFO).write_text(json.dumps(info))
            if its_end is not None:
                (place.parent / END).write_text(json.dumps(its_end))
        if end is not None:
            (folder / END).write_text(json.dumps(end))
        return folder

    return write


def states(ranks: tuple[Rank, ...]) -> list[tuple[str, State]]:
    return [(rank.host, rank.state) for rank in ranks]


def test_a_node_that_had_not_ended_with_the_job_is_not_dead(record: Record) -> None:
    ended = {**BAD, "unfinished": {"n1": "running"}, "unseen": {}}
    case = load_recording(record("r", {"n0": BAD, "n1": None}, ended))
    assert case.job.outcome is Outcome.FAILED
    assert states(case.ranks) == [("n0", State.DEAD), ("n1", State.RUNNING)]
    assert case.lost_hosts == ()
    assert "host n1" in {gap.probe for gap in case.unexamined}


def test_a_node_that_was_lost_is_dead_and_named_with_its_last_record(record: Record) -> None:
    ended = {**BAD, "unfinished": {"n1": "lost"}, "unseen": {}}
    case = load_recording(record("r", {"n0": BAD, "n1": None}, ended))
    assert states(case.ranks) == [("n0", State.DEAD), ("n1", State.DEAD)]
    (lost,) = case.lost_hosts
    assert lost.name == "n1"
    assert lost.seen is not None


@pytest.mark.parametrize(("silent", "lost"), [(FRESH + 9, ["n0"]), (FRESH - 9, [])])
def test_without_the_first_node_a_part_that_was_not_touched_for_long_is_lost(
    record: Record, silent: float, lost: list[str]
) -> None:
    folder = record("r", {"n0": None, "n1": BAD})
    touched = time.time() - silent
    os.utime(folder / HOSTS / "n0" / INFO, (touched, touched))
    case = load_recording(folder)
    assert [host.name for host in case.lost_hosts] == lost
    assert case.job.exit_code == (1 if lost else None)


def test_a_host_is_not_lost_if_one_of_its_tasks_has_ended(record: Record) -> None:
    folder = record("r", {"n0": GOOD, "n1": BAD})
    task = folder / HOSTS / "n0/tasks/1"
    task.mkdir(parents=True)
    (task / INFO).write_bytes((folder / INFO).read_bytes())
    for part in (task, task.parent.parent):
        os.utime(part / INFO, (1000.0, 1000.0))
    assert load_recording(folder).lost_hosts == ()


def test_parts_that_were_copied_while_all_ran_lose_nobody(record: Record) -> None:
    folder = record("r", {"n0": None, "n1": None})
    for host in ("n0", "n1"):
        os.utime(folder / HOSTS / host / INFO, (1000.0, 1000.0))
    assert load_recording(folder).lost_hosts == ()


def test_recordings_of_all_nodes_are_one_case(record: Record) -> None:
    unseen = {"1 other node": "they write on disks of their own"}
    one = record("a", {"n0": GOOD}, {**GOOD, "unfinished": {}, "unseen": unseen})
    other = record("b", {"n1": BAD}, {**BAD, "unfinished": {}, "unseen": unseen})
    alone = load_recording(one)
    assert [gap.probe for gap in alone.unexamined if "node" in gap.probe] == ["1 other node"]
    whole = load_recording(one, others=(other,))
    assert [(rank.rank, rank.host) for rank in whole.ranks] == [(0, "n0"), (1, "n1")]
    assert (whole.job.exit_code, whole.job.ended) == (1, 2100.0)
    assert whole.job.hosts == ("n0", "n1")
    assert [gap.probe for gap in whole.unexamined if "node" in gap.probe] == []


def test_nodes_that_are_in_none_of_the_recordings_are_listed(record: Record) -> None:
    ends = [{"host n1": "no route", "host n2": "no route"}, {"the other nodes": "no ssh"}]
    recordings = [
        record(name, {name: GOOD}, {**GOOD, "unfinished": {}, "unseen": unseen})
        for name, unseen in zip(("n0", "n1"), ends, strict=True)
    ]

    def unseen(nodes: int | None) -> list[tuple[str, str]]:
        for folder in recordings:
            info = json.loads((folder / INFO).read_text()) | {"nodes": nodes}
            (folder / INFO).write_text(json.dumps(info))
        case = load_recording(recordings[0], others=recordings[1:])
        joins = "examine the recordings of all nodes together"
        return [(gap.probe, gap.reason) for gap in case.unexamined if gap.remedy.startswith(joins)]

    assert unseen(4) == [
        ("host n2", "no route"),
        ("1 other node", "nothing that was recorded there is here"),
    ]
    assert unseen(3) == [("host n2", "no route")]
    for complete in (2, None):
        assert unseen(complete) == []


def test_a_host_without_a_part_is_silent_unless_a_node_says_otherwise(record: Record) -> None:
    ends: dict[str, dict[str, Any]] = {
        "n0": {"unseen": {"host n2": "no route"}, "unanswered": ["host n2"]},
        "n1": {"unseen": {"1 other node": "not here"}},
        "n3": {"unseen": {"host n2": "no key"}},
    }
    first, second, third = (
        record(name, {name: GOOD}, {**GOOD, "unfinished": {}, **unseen})
        for name, unseen in ends.items()
    )
    for folder in (first, second, third):
        info = json.loads((folder / INFO).read_text()) | {"nodes": 4}
        (folder / INFO).write_text(json.dumps(info))

    def absent(*others: Path) -> list[tuple[str, bool]]:
        hosts = load_recording(first, others=others).asked_hosts
        return [(host.name, host.silent) for host in hosts]

    assert absent() == absent(second) == [("n2", True)]
    assert absent(third) == [("n2", False)]


@pytest.mark.parametrize("swapped", [False, True])
def test_of_copies_of_a_console_the_one_that_was_brought_to_its_end_is_read(
    record: Record, swapped: bool
) -> None:
    printed = "Traceback (most recent call last):\nValueError: bad sample\n"
    recordings = record("a", {"n0": BAD}), record("b", {"n0": None, "n1": None})
    for folder, text in zip(recordings, (printed, printed[:9]), strict=True):
        console = folder / HOSTS / "n0/console"
        console.mkdir()
        (console / "stderr.log").write_text(text)
    first, second = recordings[::-1] if swapped else recordings
    case = load_recording(first, others=(second,))
    assert "ValueError: bad sample" in case.console.tail


def look(at: float) -> JobSnapshot:
    process = {"pid": 10, "role": "rank", "rank": 0, "state": "S"}
    found = decode_job_snapshot(json.dumps({"at": at, "processes": [process]}).encode())
    assert found is not None
    return found


def test_looks_of_one_moment_are_one_and_others_are_left_out() -> None:
    looks = {"n0": [look(10.0), look(30.0)], "n1": [look(11.0), look(50.0)]}
    joined = join_looks(looks, ["n0", "n1"])
    assert [(one.at, one.hosts) for one in joined] == [(11.0, ("n0", "n1"))]
    assert len({process.pid for process in joined[0].processes}) == 2
    assert join_looks(looks, ["n0", "n1", "n2"]) == []
    assert join_looks({"n0": [look(10.0)]}, ()) == [look(10.0)]
