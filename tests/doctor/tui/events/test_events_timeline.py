"""The events of a case: each is listed once, with its time, similar ones together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import EVALUATION
from msgspec import structs

from mgpu_doctor.case.device_samples import XidEvent
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Error, Outcome, State
from mgpu_doctor.case.model import Event as Told
from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.report.job_events import Kind, TimelineEvent
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.tui.screens.events_screen import MOST_EVENTS, timeline
from tests.support import diagnoses
from tests.support.eventful_job import (
    AGAIN,
    AT,
    EVENTFUL,
    START,
    case,
    devices,
    event,
    finding,
    frame,
    rank,
    saves,
    steps,
)


def events_of(made: Frame, kind: Kind) -> list[tuple[str, str]]:
    """Who and what, oldest first."""
    events = [event for event in timeline(made).events if event.kind is kind]
    return [(event.who, event.sentence) for event in reversed(events)]


def only(made: Frame, kind: Kind) -> TimelineEvent:
    (one,) = (event for event in timeline(made).events if event.kind is kind)
    return one


def test_ranks_join_fall_and_are_started_again() -> None:
    assert events_of(EVENTFUL, Kind.RANKS) == [
        ("the job", "was started: torchrun --max-restarts 1 train.py"),
        ("ranks 0-3", "joined"),
        ("rank 2", "ended with exit code 1"),
        ("ranks 0, 1 and 3", "ended by SIGTERM"),
        ("ranks 0-3", "joined, restart 1"),
    ]
    assert ("rank 2", "ValueError: loss is not finite, train.py:87") in events_of(
        EVENTFUL, Kind.ERRORS
    )


def test_a_step_in_which_training_stopped_is_an_event_from_its_beginning() -> None:
    records = steps(1, 60)
    records["wall_ns"] = 0.2e9
    records["wall_ns"][[0, 20, 40, 50]] = 30e9, 9e9, 8e9, 1.9e9
    saved = event("checkpoint", 41, 8.0)
    made = case([rank(0, steps=records, events=(saved,)), rank(1, steps=records)])
    stopped = frame(replace(made, observed=float(records["end_ns"][-1]) * 1e-9))
    assert events_of(stopped, Kind.PAUSES) == [
        ("ranks 0 and 1", "step 21 took 9 s, usually 200 ms"),
        ("rank 1", "step 41 took 8 s, usually 200 ms"),
    ]
    first = next(one for one in timeline(stopped).events if "step 21" in one.sentence)
    assert first.at == pytest.approx(records["end_ns"][20] * 1e-9 - 9)


def test_a_hang_is_an_event_at_the_end_of_the_last_step() -> None:
    """Until the first rank ends, if one does: then that explains it."""
    records = steps(1, 60)
    records["wall_ns"] = 0.2e9
    last = float(records["end_ns"][-1]) * 1e-9

    def pauses(seconds: float, **other: Any) -> list[TimelineEvent]:
        ranks = [rank(0, steps=records), rank(1, steps=records, **other)]
        made = frame(replace(case(ranks), observed=last + seconds))
        return [event for event in timeline(made).events if event.kind is Kind.PAUSES]

    (hang,) = pauses(40)
    assert hang.sentence == "ended no step for 40 s after step 60, usually 200 ms"
    assert hang.who == "the job"
    assert hang.at == pytest.approx(last)
    assert pauses(4) == []
    assert pauses(40, ended=last + 1, signal=9, state=State.DEAD) == []
    assert pauses(40, took_leave=True) == []


def test_how_ranks_end() -> None:
    ends = {
        "ended by SIGKILL": rank(0, state=State.DEAD, signal=9, ended=AT - 40),
        "ended for an unknown reason": rank(1, state=State.DEAD, ended=AT - 30),
        "ended normally": rank(2, state=State.EXITED, exit_code=0, ended=AT - 20),
    }
    made = frame(case([*ends.values(), rank(3, ended=None)], outcome=Outcome.FAILED, ended=AT - 10))
    last = events_of(made, Kind.RANKS)[-4:]
    assert last[:3] == [(f"rank {number}", how) for number, how in enumerate(ends)]
    assert last[3] == ("the job", "ended: failed")
    assert timeline(made).events[0].tone is Tone.CRITICAL


def test_of_several_hosts_the_host_is_named() -> None:
    ranks = [rank(number, host=f"node-{number // 2}") for number in range(4)]
    ranks[3] = replace(ranks[3], state=State.DEAD, signal=9, ended=AT)
    made = events_of(frame(case(ranks)), Kind.RANKS)
    assert made[1:] == [("ranks 0-3", "joined"), ("rank 3 node-1", "ended by SIGKILL")]


def test_saves_are_one_line_and_a_slow_one_another() -> None:
    assert events_of(EVENTFUL, Kind.SAVING) == [
        ("rank 3", "evaluated: 31 s at step 600"),
        ("rank 0", "saved a checkpoint: 12 s at step 600, usually 1.3 s"),
        ("rank 0", "saved 12 checkpoints, 1.3 s each, every 100 steps, the last at step 1200"),
    ]


def test_evaluations_are_reported_by_the_steps_in_which_they_were_counted() -> None:
    records = steps(0, 1200)
    records["phases"][:, EVALUATION] = np.nan
    records["phases"][300::300, EVALUATION] = 12.0
    records["phases"][5, EVALUATION] = 0.001
    ranks = [rank(number, steps=records) for number in range(2)]
    assert events_of(frame(case(ranks)), Kind.SAVING) == [
        ("ranks 0 and 1", "evaluated 3 times, 12 s each, every 300 steps, the last at step 900")
    ]
    once = replace(ranks[0], steps=records[:400])
    event_ = only(frame(case([once])), Kind.SAVING)
    assert (event_.at, event_.sentence) == (AGAIN + 150.0, "evaluated: 12 s at step 300")
    lost = [replace(rank, lost_records=9) for rank in ranks]
    assert "evaluated at least 3 times" in events_of(frame(case(lost)), Kind.SAVING)[0][1]


def test_ranks_that_save_together_are_reported_together() -> None:
    ranks = [rank(number, events=saves(slow=None)) for number in range(256)]
    ranks[7] = replace(ranks[7], events=saves(3, slow=None))
    made = events_of(frame(case(ranks)), Kind.SAVING)
    assert [who for who, _ in made] == ["rank 7", "ranks 0-6 and 8-255"]
    assert events_of(frame(case([rank(0, events=saves(2))])), Kind.SAVING) == [
        ("rank 0", "saved a checkpoint: 1.2 s at step 100"),
        ("rank 0", "saved a checkpoint: 1.2 s at step 200"),
    ]


def test_of_a_full_ring_the_number_is_a_least_one() -> None:
    many = tuple(event("checkpoint", step, 1.0) for step in range(1024))
    assert (
        "saved at least 1024 checkpoints"
        in events_of(frame(case([rank(0, events=many)])), Kind.SAVING)[0][1]
    )


def test_only_long_pauses_are_reported() -> None:
    assert events_of(EVENTFUL, Kind.PAUSES) == [
        (
            "rank 1",
            "7 pauses of garbage collection, the longest 200 ms, 980 ms in all, "
            "the last at step 280",
        )
    ]


def test_compilations_are_reported_by_function_with_the_last_reason() -> None:
    assert events_of(EVENTFUL, Kind.COMPILING) == [
        (
            "rank 3",
            "torch compiled step train.py:31 4 times, 10 s, the last time because tensor 'x' "
            "size 0: 64 became 48",
        )
    ]


def test_findings_come_and_go() -> None:
    events = [event for event in timeline(EVENTFUL).events if event.kind is Kind.FINDINGS]
    assert [(event.at, event.sentence, event.tone) for event in events] == [
        (None, "coverage-low: the phases explain 71 % of the time", Tone.WARNING),
        (
            AGAIN + 900.0,
            "straggler-input: rank 3 is slow: its input takes 31 ms a step, since step 1800",
            Tone.WARNING,
        ),
        (AT - 340.0, "loader-slow: gone after 1 min: the loader was late", Tone.GOOD),
        (AT - 400.0, "loader-slow: the loader was late", Tone.WARNING),
    ]


@pytest.mark.parametrize(
    ("title", "since", "suffix"),
    [
        ("its input takes 31 ms", 1800, ", since step 1800"),
        ("its input takes 31 ms, since step 1800", 1800, ""),
        ("its input takes 31 ms, from the start", 0, ""),
        ("its input takes 31 ms, from the first step", 0, ""),
        ("its input takes 31 ms, since before step 500", 0, ""),
        ("was killed by SIGKILL after step 0", 0, ""),
        ("moving data takes 43 % of every step", 0, ", over all steps"),
        ("its memory grows", None, ""),
    ],
)
def test_since_when_a_finding_holds_is_reported_once(
    title: str, since: int | None, suffix: str
) -> None:
    made = frame(case([rank(3, steps=steps(0, 2000))]), [finding("some", title, since, 3)])
    assert only(made, Kind.FINDINGS).sentence == f"some: {title}{suffix}"


def test_a_finding_older_than_the_records_has_no_moment() -> None:
    records = EVENTFUL.diagnosis.case.ranks[3].steps if EVENTFUL.diagnosis else None
    assert records is not None
    made = frame(case([rank(3, steps=records[2000:])]), [finding("late", "late", 1800, 3)])
    assert only(made, Kind.FINDINGS).at is None


def test_what_the_driver_tells_of_gpus() -> None:
    made = events_of(EVENTFUL, Kind.GPUS)
    assert made[0][0] == "GPU 0, rank 0"
    assert made[0][1].startswith("XID 13 on the GPU at 0000:1b:00.0: a kernel made an illegal")
    assert made[0][1].endswith(", 3 times")
    assert made[1][0] == "GPU 1, rank 1"
    assert made[1][1].startswith("XID 79")
    assert made[2:] == [
        ("GPU 1, rank 1", "was lost: GPU is lost"),
        ("GPU 1, rank 1", "answers again"),
    ]


def test_a_gpu_that_is_not_listed_any_more_is_lost_once() -> None:
    whole, less = devices(AT - 30), devices(AT - 20)
    less = structs.replace(less, devices=less.devices[:1])
    samples = (whole, less, structs.replace(less, at=AT - 10), structs.replace(whole, at=AT))
    made = [
        sentence for _, sentence in events_of(frame(case([], device_samples=samples)), Kind.GPUS)
    ]
    assert made == ["was lost: it is not listed any more", "answers again"]


def test_gpus_of_several_hosts_are_distinguished() -> None:
    whole, less = (
        structs.replace(devices(AT - 30), host="a"),
        structs.replace(devices(AT - 20, True), host="b"),
    )
    broken = XidEvent(AT - 21.0, 1, 79, "0000:1c:00", logged=True)
    samples = (
        whole,
        structs.replace(devices(AT - 10), host="a"),
        structs.replace(less, events=(broken,)),
    )
    made = events_of(frame(case([], device_samples=samples)), Kind.GPUS)
    assert {who for who, _ in made} == {"GPU 1 b"}
    assert [sentence.partition(":")[0] for _, sentence in made] == ["XID 79", "is lost"]


def test_an_xid_of_the_kernel_s_log_names_a_gpu_that_nobody_lists() -> None:
    gone = XidEvent(AT, None, 79, "0000:9a:00", logged=True)
    event_ = only(Frame(AT, "live", devices=devices(AT, False, gone)), Kind.GPUS)
    assert event_.who == "GPU at 0000:9a:00"
    assert event_.sentence.startswith("XID 79: the GPU at 0000:9a:00 has fallen")


def test_an_xid_stays_reported_after_its_sample_and_once_if_the_recording_has_it() -> None:
    xid = XidEvent(AT - 50.0, 1, 79)
    quiet = Frame(AT, "live", devices=devices(AT), xids=(xid,))
    assert len(events_of(quiet, Kind.GPUS)) == 1
    recorded = (devices(AT - 49.0, False, structs.replace(xid, at=AT - 50.4)),)
    both = frame(case([], device_samples=recorded), devices=devices(AT), xids=(xid,))
    assert [sentence.endswith("times") for _, sentence in events_of(both, Kind.GPUS)] == [False]


def test_samples_of_another_host_are_another_machine() -> None:
    one = devices(AT - 30)
    other = structs.replace(one, at=AT - 40, devices=one.devices[:1])
    made = frame(case([], device_samples=(one, other, structs.replace(other, at=AT))))
    assert not events_of(made, Kind.GPUS)


def test_without_a_job_gpus_are_mentioned() -> None:
    made = Frame(AT, "live", devices=devices(AT, True, XidEvent(AT, None, 9999)))
    assert sorted(events_of(made, Kind.GPUS)) == [
        ("GPU 1", "is lost: GPU is lost"),
        ("a GPU", "XID 9999"),
    ]
    assert timeline(made).events[0].at is None


def test_a_replay_tells_nothing_that_is_yet_to_come() -> None:
    then = START + 242.0
    position = Position(START, AT, then, 1.0, paused=True)
    moments = [
        event.at for event in timeline(structs.replace(EVENTFUL, at=then, replay=position)).events
    ]
    known = [moment for moment in moments if moment is not None]
    assert max(known) == START + 241.0
    assert known == sorted(known, reverse=True)


def test_the_newest_are_kept_and_the_rest_is_counted() -> None:
    notes = tuple(event("note", step, 0.0, f"note {step}") for step in range(MOST_EVENTS + 100))
    shown_timeline = timeline(frame(case([rank(0, events=notes)], started=None)))
    assert len(shown_timeline.events) == MOST_EVENTS
    assert shown_timeline.left_out == 101  # and that the rank joined
    assert shown_timeline.events[0].sentence == f"note: note {MOST_EVENTS + 99}"


def test_words_of_others_are_only_text() -> None:
    hostile = diagnoses.HOSTILE * 50
    events = (Told("recompile", AT, 1, 1.0, 1.0, hostile), Told(hostile, AT, 1, 1.0, 1.0, hostile))
    shown_timeline = timeline(frame(case([rank(0, events=events)]), [finding("x", hostile)]))
    for timeline_event in shown_timeline.events:
        assert len(timeline_event.sentence) <= 400
        assert "\x1b" not in timeline_event.sentence
        assert "\u202e" not in timeline_event.sentence


def test_an_exception_that_the_console_printed_too_is_reported_once() -> None:
    error = Error("ValueError", "bad", None, None, None, "", AT - 21)
    fallen = rank(1, state=State.DEAD, ended=AT - 20, error=error)
    lines = [("python", "ValueError: bad", 1), ("python", "ValueError: worse", 1)]
    signs = tuple(LogMatch(name, who, "stderr", 1, words, None) for name, words, who in lines)
    made = replace(case([fallen]), signs=signs)
    sentences = [words for _, words in events_of(frame(made), Kind.ERRORS)]
    assert sum("bad" in words for words in sentences) == 1
    assert any("worse" in words for words in sentences)


def test_where_a_logger_stands_is_no_part_of_what_it_printed() -> None:
    line = "1393 site-packages/torch/api.py:1002] failed (exitcode: -9) local_rank: 1"
    made = frame(case([rank(1)], signs=(LogMatch("killed", None, "console", 9, line, None),)))
    assert events_of(made, Kind.ERRORS) == [
        ("the console", "printed: failed (exitcode: -9) local_rank: 1")
    ]
