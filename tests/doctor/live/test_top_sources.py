"""Sources of frames: running jobs, replays; and how rarely they are sampled."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer

from mgpu_doctor.analysis import measures
from mgpu_doctor.case.job_snapshots import JobSnapshot
from mgpu_doctor.case.model import Now, Outcome, State
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.live import job_watch
from mgpu_doctor.live.frame_source import CPU_SHARE, FrameOptions, Pace
from mgpu_doctor.live.job_watch import Watch, refreshed, turned
from mgpu_doctor.live.live_jobs import LiveJobs
from mgpu_doctor.live.replay import Replay
from mgpu_doctor.live.step_heatmap import Heatmap, make_heatmap
from mgpu_doctor.recording import parallel_boxes
from mgpu_doctor.recording.box import Box, BoxReader
from mgpu_doctor.recording.column_file import StoredTable
from mgpu_doctor.recording.columns import Columns
from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.layout import END, INFO, boxes
from mgpu_doctor.recording.live_recordings import is_living, living
from mgpu_doctor.rules.settings import Settings
from tests.support import job_snapshots
from tests.support.boxes import write_steps
from tests.support.recordings import HEALTHY, SLOW_INPUT, STARTED, WAITING, recording
from tests.support.synthetic import Fault, Synthetic, make_case, make_rank, records, synthetic_case

JOB = (WAITING, WAITING, SLOW_INPUT, WAITING)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_job() -> None:
    frame = LiveJobs().frame(0)
    assert frame.diagnosis is None
    assert frame.hint is not None
    assert "mgpu-doctor run -- COMMAND" in frame.hint
    assert frame.host is not None
    assert frame.devices is not None


def test_no_job_but_an_old_recording_is_mentioned() -> None:
    recording(runs() / "20260101-000000-old", JOB)
    frame = LiveJobs().frame(0)
    assert frame.diagnosis is None
    assert frame.hint is not None
    assert "top --replay 20260101-000000-old" in frame.hint


def test_a_job_that_runs_is_found_and_diagnosed() -> None:
    recording(runs() / "20260101-000000-job", JOB, live=True)
    frame = LiveJobs().frame(0)
    assert frame.source == "live  20260101-000000-job"
    assert frame.diagnosis is not None
    assert [rank.rank for rank in frame.diagnosis.ranks] == [0, 1, 2, 3]
    assert frame.diagnosis.findings[0].code == "straggler-input"
    assert frame.diagnosis.findings[0].culprits[0].rank == 2
    assert isinstance(frame.heat, Heatmap)
    assert frame.going.step_seconds == pytest.approx(sum(SLOW_INPUT.values()), rel=0.1)


def test_what_is_not_wanted_is_not_made() -> None:
    recording(runs() / "20260101-000000-job", JOB, live=True)
    frame = LiveJobs(wanted=FrameOptions(heat=False, history=False)).frame(0)
    assert frame.diagnosis is not None
    assert frame.heat is None
    assert frame.history is None


def test_the_first_frame_is_made_before_it_is_asked_for() -> None:
    clock, made = Clock(), threading.Event()

    def tick() -> float:
        now = clock()
        made.set()
        return now

    live = LiveJobs(clock=tick)
    live.begin()
    assert made.wait(60)
    clock.now += 5
    assert [live.frame(0).at, live.frame(0).at] == [100.0, 105.0]
    live.close()


def test_what_is_closed_makes_no_frame_afterwards() -> None:
    clock = Clock()
    live = LiveJobs(clock=clock)
    live.begin()
    live.close()
    clock.now += 5
    assert live.frame(0).at == 100.0, "it was made before"


def test_next_job_goes_round() -> None:
    for name in ("20260101-000000-a", "20260101-000001-b"):
        recording(runs() / name, (HEALTHY, HEALTHY), live=True)
    live = LiveJobs()
    first = live.frame(0)
    assert first.others == 1
    seen = [first.source]
    for _ in range(2):
        live.next_job()
        seen.append(live.frame(0).source)
    assert seen == [
        "live  20260101-000001-b",
        "live  20260101-000000-a",
        "live  20260101-000001-b",
    ]


def test_a_job_that_ends_stays_on_the_screen_as_it_ended() -> None:
    folder = recording(runs() / "20260101-000000-job", JOB, live=True)
    live = LiveJobs()
    running = live.frame(0)
    assert running.diagnosis is not None
    assert running.diagnosis.case.job.outcome is not Outcome.COMPLETED
    end = {"exit_code": 0, "signal": None, "ended": STARTED + 60, "asked": None}
    (folder / END).write_text(json.dumps(end))
    over = live.frame(1)
    assert over.diagnosis is not None
    assert over.diagnosis.case.job.outcome is Outcome.COMPLETED
    assert (running.source, over.source) == (
        "live  20260101-000000-job",
        "finished  20260101-000000-job",
    )
    assert (running.over, over.over) == (False, True)
    assert live.frame(1).diagnosis is over.diagnosis
    assert live.frame(1).ranks_age == 0 < running.ranks_age


def test_what_is_no_recording_says_so_and_the_machine_is_still_shown(tmp_path: Path) -> None:
    frame = LiveJobs(tmp_path / "nowhere").frame(0)
    assert frame.diagnosis is None
    assert frame.hint is not None
    assert "does not exist" in frame.hint
    assert frame.host is not None


def test_a_deleted_recording_is_reported_and_another_job_is_shown() -> None:
    folder = recording(runs() / "20260101-000000-job", JOB, live=True)
    live = LiveJobs()
    assert live.frame(0).diagnosis is not None
    shutil.rmtree(folder)
    for _ in range(2):
        gone = live.frame(1)
        assert (gone.diagnosis, gone.source) == (None, "live")
        assert gone.hint is not None
        assert gone.hint.startswith("The recording of 20260101-000000-job has been deleted.\n")
    recording(runs() / "20260101-000001-next", JOB, live=True)
    assert live.frame(1).source == "live  20260101-000001-next"


def test_living_jobs(tmp_path: Path) -> None:
    folder = recording(runs() / "20260101-000000-job", (HEALTHY,), live=True)
    assert living() == [folder]
    info = json.loads((folder / INFO).read_text())
    for wrong in (
        {"job_pid": 2**22 + 1},
        {"job_pid": "1"},
        {"job_start_ticks": 1},
        {"host": "elsewhere"},
    ):
        (folder / INFO).write_text(json.dumps({**info, **wrong}))
        assert not is_living(folder), wrong
    (folder / INFO).write_text("[1")
    assert living() == []
    assert not is_living(tmp_path / "nowhere")


def test_replay_knows_only_what_was_known() -> None:
    folder = recording(runs() / "r", JOB)
    replay = Replay(folder)
    start = replay.frame(0)
    assert start.replay is not None
    replay.seek(1)
    end = replay.frame(0)
    assert end.replay is not None
    assert end.diagnosis is not None
    assert end.at == end.replay.end > start.at == start.replay.start
    assert end.diagnosis.case.observed == end.at


@pytest.mark.parametrize(("many", "kind"), [(1, StoredTable), (10, np.ndarray)])
def test_replay_reads_boxes_once_and_those_of_many_ranks_into_a_file(
    monkeypatch: pytest.MonkeyPatch, many: int, kind: type
) -> None:
    """Also of the steps up to a moment, while the records are in order."""
    monkeypatch.setattr(parallel_boxes, "MANY", many)
    replay = Replay(recording(runs() / "r", JOB))
    monkeypatch.setattr(parallel_boxes, "read_box", pytest.fail)
    replay.seek(1)
    end = replay.frame(0).diagnosis
    assert end is not None
    for rank in end.case.ranks:
        assert len(rank.steps)
        assert isinstance(rank.steps, Columns)
        assert isinstance(rank.steps.block.tables["end_ns"], kind)


def test_replay_runs_by_its_speed_and_stops_at_the_end() -> None:
    replay = Replay(recording(runs() / "r", JOB))
    first = replay.frame(0).replay
    assert first is not None
    replay.faster(2)
    second = replay.frame(0.5).replay
    assert second is not None
    assert second.at - first.at == pytest.approx(min(2.5, first.end - first.start))
    last = replay.frame(1e9).replay
    assert last is not None
    assert (last.at, last.paused) == (last.end, True)
    replay.pause()
    again = replay.frame(0).replay
    assert again is not None
    assert (again.at, again.paused) == (again.start, False)


def test_replay_of_what_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(NotARecording):
        Replay(tmp_path)


def test_pace_keeps_to_its_share() -> None:
    clock, cost = Clock(), Clock(0.0)
    pace = Pace(clock, cost)
    assert pace.due()
    pace.begin()
    cost.now += 0.03
    pace.end()
    assert not pace.due()
    clock.now += 0.03 / CPU_SHARE - 0.01
    assert not pace.due()
    clock.now += 0.02
    assert pace.due()


def test_a_diagnosis_is_not_made_anew_for_every_frame() -> None:
    folder = recording(runs() / "job", JOB, live=True)
    clock, cost = Clock(), Clock(0.0)

    def dear() -> float:
        cost.now += 0.02
        return cost.now

    watch = Watch(folder, clock, dear)
    first = watch.poll()
    clock.now += 0.5
    second = watch.poll()
    assert second.diagnosis is first.diagnosis
    assert second.age == 0.5
    assert watch.poll(anew=True).age == 0
    watch.close()


def test_a_job_is_still_watched_if_the_post_mortem_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyError("no such rank")

    monkeypatch.setattr(measures, "examine_failures", crash)
    watch = Watch(recording(runs() / "job", JOB, live=True), settings=Settings(forgiving=True))
    diagnosis = watch.poll().diagnosis
    watch.close()
    assert diagnosis.findings[0].code == "straggler-input"
    assert "analysis of failures" in {gap.probe for gap in diagnosis.unexamined}


def test_how_long_ago_the_boxes_were_read_is_reported() -> None:
    folder = recording(runs() / "job", JOB, live=True)
    clock, cost = Clock(), Clock(0.0)

    def dear() -> float:
        cost.now += 1.0
        return cost.now

    watch = Watch(folder, clock, dear)
    ages = []
    for _ in range(5):
        ages.append(watch.poll().read)
        clock.now += 5.0
    watch.close()
    assert ages == [0, 5, 10, 0, 5], "every fifteen seconds whatever it costs"


def test_history_is_read_seldom_and_of_all_ranks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recording(runs() / "job", JOB, live=True)
    asked: list[bool] = []
    poll = BoxReader.poll

    def polled(reader: BoxReader, *, whole: bool = True, most: int = 1 << 16) -> Box:
        asked.append(whole)
        return poll(reader, whole=whole, most=most)

    monkeypatch.setattr(BoxReader, "poll", polled)
    clock = Clock()
    watch = Watch(folder, clock, Clock(0.0))
    for after, all_of_it in ((0, True), (10, False), (19, False), (1, True), (10, False)):
        clock.now += after
        asked.clear()
        watch.poll()
        assert asked == [all_of_it] * len(JOB)
    asked.clear()
    watch.poll(anew=True)
    assert all(asked)
    watch.close()


def test_many_ranks_share_the_records_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recording(runs() / "job", JOB, live=True)
    whole = load_recording(folder)
    monkeypatch.setattr(job_watch, "MOST_RECORDS", 30 * len(JOB))
    monkeypatch.setattr(job_watch, "MOST_READERS", 1)  # and the other is opened each time
    watch = Watch(folder)
    for _ in range(2):
        case = watch.poll(anew=True).diagnosis.case
        for rank, all_of_it in zip(case.ranks, whole.ranks, strict=True):
            assert len(all_of_it.steps) > 60
            assert rank.steps["step"].tolist() == all_of_it.steps["step"][-30:].tolist()
            assert rank.lost_records == len(all_of_it.steps) - 30
    watch.close()


def test_ranks_that_wait_by_turns_are_not_judged_anew_each_time() -> None:
    steps = records(Synthetic(ranks=2, steps=20))
    runs_ = make_rank(0, steps[0])
    turns = [make_case([replace(runs_, state=state)]) for state in State]
    anew = [state for state, turn in zip(State, turns, strict=True) if turned(turns[0], turn)]
    assert turns[0].ranks[0].state is State.RUNNING
    assert set(State) - set(anew) == {State.RUNNING, State.WAITING}


def test_stacks_of_a_job_that_stands_are_judged_at_once() -> None:
    steps = records(Synthetic(ranks=2, steps=20))
    before = make_case([make_rank(0, steps[0])])
    assert not turned(before, before)
    assert turned(before, replace(before, job_snapshots=(JobSnapshot(1.0, None, None, (), ()),)))


def test_fresh_facts_under_an_old_judgement() -> None:
    steps = records(Synthetic(ranks=2, steps=60))
    old = diagnose(make_case([make_rank(n, steps[n][:50]) for n in range(2)]))
    now = Now("wait", 0.0, 59, "all_reduce train.py:87", 1)
    new = make_case([make_rank(n, steps[n], now=now) for n in range(2)])
    fresh = refreshed(old, new)
    assert [rank.last_step for rank in fresh.ranks] == [59, 59]
    assert fresh.ranks[0].where == "all_reduce train.py:87"
    assert fresh.findings == old.findings
    hung = replace(old, ranks=tuple(replace(rank, state="hung") for rank in old.ranks))
    assert {rank.state for rank in refreshed(hung, old.case).ranks} == {"hung"}
    assert {rank.state for rank in refreshed(hung, new).ranks} == {State.RUNNING.value}


def test_where_a_stack_showed_a_stuck_rank_stays_until_it_moves() -> None:
    steps = records(Synthetic(ranks=2, steps=60))
    ranks = [make_rank(n, steps[n][:50], now=Now("other", 0.0, 49, "", 1)) for n in range(2)]
    old = diagnose(make_case(ranks))
    snapshots = job_snapshots.snapshot_series({1: job_snapshots.LOCKED}).snapshots()
    seen = replace(
        old,
        case=replace(old.case, job_snapshots=snapshots),
        ranks=tuple(replace(rank, state="hung", where="take() util.py:31") for rank in old.ranks),
    )
    assert {rank.where for rank in refreshed(seen, old.case).ranks} == {"take() util.py:31"}
    moved = make_case([make_rank(n, steps[n], now=ranks[n].now) for n in range(2)])
    assert {rank.where for rank in refreshed(seen, moved).ranks} == {"other"}


def test_heat_shows_the_slow_rank_and_when_it_began() -> None:
    job = Synthetic(ranks=4, steps=120, faults=[Fault(2, "input", milliseconds=20, start=80)])
    made = make_heatmap(synthetic_case(job))
    assert isinstance(made, Heatmap)
    column = made.steps.tolist().index(80)
    assert made.excess[2, column + 1 :].min() > 0.5
    assert abs(made.excess[:, :column]).max() < 0.5


def test_one_rank_has_no_heat_but_a_reason() -> None:
    made = make_heatmap(synthetic_case(Synthetic(ranks=1)))
    assert isinstance(made, str)


def test_the_newest_step_is_shown_while_all_else_is_some_seconds_old() -> None:
    folder = recording(runs() / "job", (), live=True)
    place = boxes(folder, os.uname().nodename)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                closing(Writer.open(place, rank=rank, local_rank=rank, world_size=2))
            )
            for rank in range(2)
        ]
        for writer in writers:
            writer.birth({"framework": "torch", "strategy": "ddp"})
            writer.state(layout.RUNNING)
            write_steps(writer, 100)
        cost = Clock(0.0)

        def dear() -> float:
            cost.now += 1.0
            return cost.now

        watch = Watch(folder, Clock(), dear)
        stack.callback(watch.close)
        first = watch.poll()
        assert (first.diagnosis.furthest_step, first.going.step) == (99, None)
        write_steps(writers[1], 3, first=100)
        second = watch.poll()
        assert second.diagnosis is first.diagnosis
        assert (second.diagnosis.furthest_step, second.going.step) == (99, 102)
        assert second.going.step_seconds == first.going.step_seconds
        assert watch.poll(anew=True).diagnosis.furthest_step == 102
        assert watch.poll().going.step is None, "the ranks are as new"


def test_the_newest_step_is_read_from_ranks_of_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "MOST_LEADERS", 2)
    folder = recording(runs() / "job", (), live=True)
    kernel = os.uname()
    with ExitStack() as stack:
        for rank in range(4):
            host = f"node-{rank // 3}"
            named = os.uname_result((kernel[0], host, *kernel[2:]))
            with monkeypatch.context() as patch:
                patch.setattr(os, "uname", lambda named=named: named)
                made = Writer.open(boxes(folder, host), rank=rank, local_rank=0, world_size=4)
            writer = stack.enter_context(closing(made))
            writer.birth({"framework": "torch", "strategy": "ddp"})
            writer.state(layout.RUNNING)
            write_steps(writer, 100 if rank < 3 else 99)
        watch = Watch(folder, Clock(), cost=time.thread_time)
        stack.callback(watch.close)
        assert watch.poll().diagnosis.furthest_step == 99
        write_steps(writer, 3, first=99)
        assert watch.poll().going.step == 101
