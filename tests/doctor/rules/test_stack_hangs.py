"""Hangs found by stacks: the rank that the others wait for, and the confidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mgpu_doctor.case.model import AskedHost, Now, Outcome, ProcessEnd, Rank, State, Wait
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.report import diagnosis_json, terminal
from tests.support import job_snapshots
from tests.support.diagnoses import facts
from tests.support.diagnoses import rank as summary
from tests.support.failure_cases import error, lost_peer
from tests.support.job_snapshots import (
    LOCKED,
    LOOP,
    REMOTE_CALL,
    SERVING,
    WAITING_IN_COLLECTIVE,
    ProcessState,
    SnapshotSeries,
    blocked_process,
    busy_process,
    collective,
    snapshot_series,
)
from tests.support.seeds import at_most


def examined(job: SnapshotSeries, ranks: tuple[Rank, ...] = ()) -> Diagnosis:
    return diagnose(job_snapshots.case(job.snapshots(), ranks))


def only(job: SnapshotSeries, ranks: tuple[Rank, ...] = ()) -> Finding:
    (finding,) = examined(job, ranks).findings
    return finding


def boxed(number: int, *, since: float | None = None, ended: float | None = None) -> Rank:
    """A rank with a box: waiting since, or with its newest step ended at, seconds before the last
    look."""
    last = job_snapshots.START + 2.0
    known = facts(summary(number, state=State.RUNNING, exit_code=None))
    made = replace(known, pid=1000 + number, steps=np.empty(0, STEP_DTYPE), clock_offset=0.0)
    if since is not None:
        made = replace(made, now=Now("wait", last - since, 5, None, None))
    if ended is not None:
        steps = np.zeros(1, STEP_DTYPE)
        steps["end_ns"] = int((last - ended) * 1e9)
        steps["wall_ns"] = 10_000_000
        made = replace(made, steps=steps)
    return made


def lines(found: Finding) -> list[str | None]:
    return [
        item.where for item in found.evidence if item.measure == f"rank {found.culprits[0].rank}"
    ]


CALL = (*LOOP, "work util.py:31")
PERMANENT = {
    "lock": (ProcessState(CALL), "release-the-lock", ""),
    "thread": (ProcessState((*CALL, "join threading.py:9")), "release-the-lock", ""),
    "file": (ProcessState(CALL, syscall="flock /x, locked by itself"), "release-the-lock", "/x"),
    "a victim's file": (
        ProcessState(CALL, syscall="flock /x, locked by 1000 python"),
        "release-the-lock",
        "locked by 1000",
    ),
    "gil": (ProcessState(CALL, syscall="pause", gil=True), "release-the-gil", "GIL"),
    "group": (
        ProcessState(CALL, syscall="pause", gil=True, native=("c10d::X::~ProcessGroupGloo",)),
        "end-model-first",
        "process group ends",
    ),
    "own pipe": (
        ProcessState(CALL, syscall="read pipe:[7], written by itself"),
        "bound-the-wait",
        "read pipe:[7]",
    ),
    "prompt": (ProcessState((*CALL, "interaction pdb.py:9")), "answer-or-remove", ""),
    "stopped": (ProcessState(CALL, state="T"), "continue", ""),
}
PASSING = {
    "sleep": (ProcessState(CALL, syscall="clock_nanosleep"), "no-sleep", ""),
    "pipe": (
        ProcessState(CALL, syscall="read pipe:[7], written by 12 sh"),
        "bound-the-wait",
        "read pipe:[7]",
    ),
    "child": (ProcessState((*CALL, "wait subprocess.py:9")), "see-the-child", ""),
    "another's file": (
        ProcessState(CALL, syscall="flock /x, locked by 9 sh"),
        "release-the-lock",
        "locked by 9 sh",
    ),
    "no one's file": (ProcessState(CALL, syscall="flock /x"), "release-the-lock", "/x"),
    "busy helper": (ProcessState(CALL, helpers=[("upload util.py:4",)]), "release-the-lock", ""),
}


@pytest.mark.parametrize("how", PERMANENT)
def test_a_rank_that_cannot_go_on_is_critical_at_once(how: str) -> None:
    seen, fix, detail = PERMANENT[how]
    finding = only(snapshot_series({2: [seen]}))
    assert (finding.code, finding.severity) == ("hang-rank-behind", Severity.CRITICAL)
    assert [(culprit.rank, culprit.pid, culprit.host) for culprit in finding.culprits] == [
        (2, 1002, "node-a")
    ]
    assert finding.victims == (0, 1, 3)
    assert finding.fixes[0].id == fix
    assert all(
        text in finding.title for text in (detail, "util.py:31", "all_reduce at train.py:65")
    )
    assert lines(finding) == [f"{job_snapshots.HOME}/util.py:31"]
    assert finding.confidence >= 0.75


@pytest.mark.parametrize("how", PASSING)
def test_a_rank_that_may_go_on_is_a_warning(how: str) -> None:
    seen, fix, detail = PASSING[how]
    finding = only(snapshot_series({2: [seen]}))
    assert (finding.code, finding.severity) == ("hang-rank-behind", Severity.WARNING)
    assert finding.confidence <= 0.6
    assert (finding.fixes[0].id, finding.fixes[-1].id) == (fix, "look-again")
    assert detail in finding.title


@pytest.mark.parametrize("how", PASSING)
def test_a_long_wait_is_a_hang(how: str) -> None:
    job = snapshot_series({2: [PASSING[how][0]]})
    job.every = 20.0
    finding = only(job)
    assert (finding.severity, finding.confidence) == (Severity.CRITICAL, 0.93)


def test_the_scheduler_shows_how_long_no_thread_has_run() -> None:
    waits = [ProcessState(collective(), rested=400.0)]
    sleeps = [replace(PASSING["sleep"][0], rested=300.0)]
    finding = only(snapshot_series({2: sleeps}, others=waits))
    assert (finding.severity, finding.confidence) == (Severity.CRITICAL, 0.93)
    (told,) = (item for item in finding.evidence if item.source == "scheduler")
    assert told.value == 300.0


def test_black_boxes_show_how_long_the_others_have_waited() -> None:
    job = snapshot_series({2: [PASSING["sleep"][0]]})
    waiting = tuple(boxed(number, since=42.0) for number in (0, 1, 3))
    finding = only(job, (*waiting, boxed(2)))
    assert finding.severity is Severity.CRITICAL
    assert any(item.value == 42.0 for item in finding.evidence)


def test_a_rank_that_waited_until_the_job_was_ended_counts_until_then() -> None:
    job = snapshot_series({2: [PASSING["sleep"][0]]})
    over = job_snapshots.START + 42.0
    waiting = [boxed(number, since=5.0) for number in (0, 1, 3)]
    ranks = [replace(rank, state=State.DEAD, ended=over) for rank in (*waiting, boxed(2))]
    findings = examined(job, tuple(ranks)).findings
    (found,) = (one for one in findings if one.code == "hang-rank-behind")
    assert found.severity is Severity.CRITICAL
    assert any(item.value == 45.0 for item in found.evidence)


@pytest.mark.parametrize(("waited", "codes"), [(25.0, []), (3.0, ["failed-exception"])])
def test_a_rank_whose_peer_timed_out_first_has_waited_as_long_as_that(
    waited: float, codes: list[str]
) -> None:
    """gloo closes the connections of a rank that timed out, which another then reports."""
    over = job_snapshots.START + 42.0
    causes = {
        0: (error("RuntimeError", "Timed out waiting 25000ms for recv operation"), 25.0),
        1: (lost_peer(over), waited),
        3: (error("RuntimeError", "Timed out waiting 25000ms for recv operation"), 25.0),
    }
    ended = [
        replace(
            boxed(number),
            state=State.DEAD,
            exit_code=1,
            ended=over,
            error=replace(cause, at=over, wait=Wait(over - seconds, seconds, None)),
        )
        for number, (cause, seconds) in causes.items()
    ]
    behind = replace(boxed(2), state=State.DEAD, signal=15, ended=over + 1)
    case = job_snapshots.case(
        snapshot_series({2: [PASSING["sleep"][0]]}).snapshots(), (*ended, behind)
    )
    case = replace(case, job=replace(case.job, ended=over, outcome=Outcome.FAILED, exit_code=1))
    findings = diagnose(case).findings
    assert [finding.code for finding in findings] == [*codes, "hang-rank-behind"]
    assert [culprit.rank for culprit in findings[-1].culprits] == [2]


def test_a_job_that_is_over_is_not_to_be_checked_again() -> None:
    job = snapshot_series({2: [PASSING["sleep"][0]]})
    made = job_snapshots.case(job.snapshots())
    assert [fix.id for fix in diagnose(made).findings[0].fixes][-1] == "look-again"
    over = replace(made.job, ended=job_snapshots.START + 42.0, outcome=Outcome.KILLED)
    (found,) = (
        finding
        for finding in diagnose(replace(made, job=over)).findings
        if finding.code == "hang-rank-behind"
    )
    assert found.fixes[-1].id == "look-there"
    assert "util.py:31" in found.fixes[-1].summary


def test_a_step_that_ended_meanwhile_shows_that_the_job_moves() -> None:
    ranks = tuple(boxed(number, ended=0.5) for number in range(4))
    codes = {finding.code for finding in examined(snapshot_series({2: LOCKED}), ranks).findings}
    assert "hang-rank-behind" not in codes


def test_a_second_hang_at_the_place_of_the_first_is_reported() -> None:
    """Snapshots of an earlier hang are in the recording, and steps have passed since."""
    job = snapshot_series({2: LOCKED}, ranks=4)
    earlier = tuple(replace(snapshot, at=snapshot.at - 3600) for snapshot in job.snapshots())
    ranks = tuple(boxed(number, ended=60.0) for number in range(4))
    case = job_snapshots.case((*earlier, *job.snapshots()), ranks)
    (found,) = (finding for finding in diagnose(case).findings if finding.code.startswith("hang-"))
    assert (found.code, [culprit.rank for culprit in found.culprits]) == ("hang-rank-behind", [2])
    assert not any(isinstance(item.value, float) and item.value > 3000 for item in found.evidence)


def test_a_job_that_completed_has_no_hang() -> None:
    case = job_snapshots.case(snapshot_series({2: LOCKED}).snapshots())
    done = replace(case, job=replace(case.job, outcome=Outcome.COMPLETED))
    assert diagnose(case).findings
    assert diagnose(done).findings == ()
    assert diagnose(done).tree == ()


QUIET = {
    "saves": [ProcessState(job_snapshots.SAVING, syscall="write /x")],
    "compiles": [ProcessState(job_snapshots.COMPILING)],
    "imports": [ProcessState(job_snapshots.IMPORTING)],
}


@pytest.mark.parametrize("how", QUIET)
def test_legitimate_work_is_reported_only_after_a_long_time(how: str) -> None:
    job = snapshot_series({0: QUIET[how]})
    assert not examined(job).findings
    job.every = 30.0
    assert only(job).code == "hang-rank-behind"


def test_a_loop_is_reported_from_the_third_snapshot_on() -> None:
    spin = job_snapshots.busy_process((*LOOP, "spin util.py:9"), 3, step=1.0, active=True, gil=True)
    spin = [replace(one, syscall=None) for one in spin]
    job = snapshot_series({2: spin})
    finding = only(job)
    assert (finding.severity, finding.confidence) == (Severity.WARNING, 0.5)
    assert finding.fixes[0].id == "end-the-loop"
    assert "spin() at util.py:9" in finding.title
    job.count = 2
    assert not examined(job).findings


def test_a_rank_that_computes_in_a_library_is_a_warning_however_long() -> None:
    calls = (*LOOP, "clean util.py:9", "match re/__init__.py:166")
    busy = job_snapshots.busy_process(calls, 3, step=1.0, active=True, gil=False)
    waits = [ProcessState(job_snapshots.collective(), rested=90.0)]
    finding = only(snapshot_series({2: [replace(one, syscall=None) for one in busy]}, others=waits))
    assert (finding.code, finding.severity) == ("hang-rank-behind", Severity.WARNING)
    assert (finding.confidence, finding.culprits[0].rank) == (0.6, 2)
    assert f"{job_snapshots.HOME}/util.py:9" in lines(finding)


def test_a_rank_that_polls_is_reported_also_if_it_is_awake_in_the_newest_snapshot() -> None:
    asleep = busy_process((*LOOP, "f util.py:4"), 3, step=0.004, syscall="clock_nanosleep")
    polls = [asleep[0], *(replace(each, active=True) for each in asleep[1:])]
    found = only(snapshot_series({1: polls}, others=[ProcessState(collective(), rested=20.0)]))
    assert (found.code, found.severity) == ("hang-rank-behind", Severity.WARNING)
    assert [culprit.rank for culprit in found.culprits] == [1]
    assert found.victims == (0, 2, 3)
    assert lines(found)[0] == f"{job_snapshots.HOME}/util.py:4"
    assert "polling" in found.title
    assert found.fixes[0].id == "no-sleep"


def test_a_rank_that_waits_for_its_worker_is_at_the_line_of_the_worker() -> None:
    job = snapshot_series({1: [ProcessState(job_snapshots.LOADING, syscall="poll")]}, ranks=2)
    job.workers = {
        1: [ProcessState((*job_snapshots.FETCHING, "DS.__getitem__ data.py:9", "take util.py:31"))]
    }
    finding = only(job)
    assert (finding.severity, finding.culprits[0].rank) == (Severity.CRITICAL, 1)
    assert "data-loader worker 5001" in finding.title
    assert lines(finding) == [f"{job_snapshots.HOME}/util.py:31"]
    assert finding.fixes[0].id == "fix-the-data-set"


def test_ranks_that_wait_for_a_gpu_may_be_computing() -> None:
    device = [ProcessState((*LOOP, "synchronize torch/cuda/__init__.py:800"))]
    sleeps = snapshot_series({2: [PASSING["sleep"][0]]}, others=device)
    assert not examined(sleeps).findings
    sleeps.every = 20.0
    assert only(sleeps).code == "hang-rank-behind"
    assert only(snapshot_series({2: LOCKED}, others=device)).severity is Severity.CRITICAL


def test_ranks_that_wait_in_tensorflow_on_a_cpu_are_not_computing() -> None:
    executes = ProcessState((*LOOP, "quick_execute tensorflow/python/eager/execute.py:53"))
    sleeps = snapshot_series({2: [PASSING["sleep"][0]]}, others=[executes])
    assert (only(sleeps).severity, only(sleeps).culprits[0].rank) == (Severity.WARNING, 2)
    on_device = [replace(executes, on_device=True)]
    assert not examined(snapshot_series({2: [PASSING["sleep"][0]]}, others=on_device)).findings


def test_a_library_is_named_with_its_line_and_the_call() -> None:
    inside = (*CALL, "on_step_end transformers/callback.py:88", "wait threading.py:3")
    finding = only(snapshot_series({2: [ProcessState(inside)]}))
    place = "in on_step_end() at transformers/callback.py:88, called at util.py:31,"
    assert f"Rank 2 waits {place} for a lock" in finding.title
    assert lines(finding) == [f"{job_snapshots.HOME}/util.py:31"]


def test_a_wait_that_blocks_no_one_is_no_hang() -> None:
    assert not examined(snapshot_series({0: LOCKED}, ranks=1)).findings
    assert not examined(snapshot_series(dict.fromkeys(range(4), LOCKED))).findings
    alone = snapshot_series({0: blocked_process("f util.py:3", syscall="pause", gil=True)}, ranks=1)
    assert only(alone).code == "hang-rank-behind"


def test_all_ranks_at_one_place_is_a_known_gap() -> None:
    diagnosis = examined(snapshot_series({}))
    assert not diagnosis.findings
    (gap,) = (gap for gap in diagnosis.unexamined if gap.probe == "which rank blocks the job")
    assert "all_reduce at train.py:65" in gap.reason


def test_different_collectives_are_reported_with_both_places() -> None:
    other = [ProcessState(collective("broadcast", 70))]
    finding = only(snapshot_series({1: other}, ranks=2))
    assert (finding.code, finding.severity) == ("hang-collective-mismatch", Severity.CRITICAL)
    assert finding.culprits == ()
    assert {"train.py:65", "train.py:70"} <= {
        str(item.where).rpartition("/")[2] for item in finding.evidence
    }
    four = only(snapshot_series({1: other}))
    assert [culprit.rank for culprit in four.culprits] == [1]
    assert four.confidence <= 0.6


def test_the_same_collective_in_another_line_is_a_suspicion() -> None:
    finding = only(snapshot_series({1: [ProcessState(collective("all_reduce", 70))]}, ranks=2))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, 0.45)


def test_a_line_reached_on_two_paths_is_reported_with_the_callers() -> None:
    def way(number: int) -> list[ProcessState]:
        return [ProcessState((*LOOP, f"step train.py:{number}", *collective()[-3:]))]

    found = only(snapshot_series({1: way(41)}, ranks=2, others=way(40)))
    sites = [str(item.where).rpartition("/")[2] for item in found.evidence[:2]]
    assert sites == ["train.py:40", "train.py:41"]


def test_pipeline_stages_may_wait_in_different_places() -> None:
    stages = {0: [ProcessState(collective("send", 50))], 1: [ProcessState(collective("recv", 52))]}
    assert not examined(SnapshotSeries(stages)).findings
    finding = only(snapshot_series({}, others=[ProcessState(collective("recv", 52))]))
    assert finding.code == "hang-collective-mismatch"
    assert {item.value for item in finding.evidence[:1]} == {"in recv"}


def test_main_threads_that_all_wait_for_remote_calls_may_be_answered_by_other_threads() -> None:
    waits = [ProcessState(REMOTE_CALL)]
    job = SnapshotSeries({0: [ProcessState(SERVING)], 1: waits, 2: waits})
    assert not examined(job).findings


def test_ranks_that_never_start_are_named() -> None:
    job = SnapshotSeries(
        {rank: [ProcessState(job_snapshots.JOINING)] for rank in (0, 1, 3)}, missing=(2,)
    )
    finding = only(job)
    assert (finding.code, finding.severity) == ("hang-rendezvous", Severity.CRITICAL)
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)
    assert finding.evidence[0].value == 3
    assert finding.evidence[0].baseline == 4


def test_a_rank_that_is_blocked_before_it_joins_is_named_with_its_line() -> None:
    late = [ProcessState((*job_snapshots.ROOT, "download util.py:4"), syscall="clock_nanosleep")]
    finding = only(snapshot_series({1: late}, others=[ProcessState(job_snapshots.JOINING)]))
    assert finding.code == "hang-rendezvous"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "download() at util.py:4" in finding.title
    imports = [ProcessState(job_snapshots.IMPORTING, cpu=at * 0.9, active=True) for at in range(3)]
    assert not examined(
        snapshot_series({1: imports}, others=[ProcessState(job_snapshots.JOINING)])
    ).findings


def test_ranks_that_all_wait_to_join_may_be_just_starting() -> None:
    job = snapshot_series({}, others=[ProcessState(job_snapshots.JOINING)], ranks=2)
    assert not examined(job).findings
    last = job_snapshots.START + 2.0
    young = tuple(replace(boxed(number), started=last - 20.0) for number in range(2))
    assert not examined(job, young).findings
    old = tuple(replace(boxed(number), started=last - 90.0) for number in range(2))
    finding = only(job, old)
    assert (finding.code, finding.severity) == ("hang-rendezvous", Severity.WARNING)
    assert finding.culprits == ()


def test_only_a_permanent_wait_makes_the_job_hung() -> None:
    ranks = tuple(boxed(number) for number in range(4))
    lasting = examined(snapshot_series({2: LOCKED}), ranks)
    assert lasting.case.job.outcome is Outcome.HUNG
    assert [rank.state for rank in lasting.ranks] == ["waiting", "waiting", "hung", "waiting"]
    assert lasting.ranks[2].where == "take() util.py:31"
    assert lasting.ranks[0].where == "all_reduce train.py:65"
    passing = examined(snapshot_series({2: [PASSING["sleep"][0]]}), ranks)
    assert passing.case.job.outcome is Outcome.RUNNING


def test_a_busy_child_process_is_no_hang() -> None:
    calls = (*CALL, "wait subprocess.py:9")
    works = snapshot_series({2: [ProcessState(calls, child_cpu=at * 0.5) for at in range(3)]})
    assert not examined(works).findings
    rests = snapshot_series({2: [ProcessState(calls, child_cpu=3.0)]})
    assert only(rests).code == "hang-rank-behind"


def test_ranks_of_other_hosts_may_still_start() -> None:
    job = snapshot_series({}, others=[ProcessState(job_snapshots.JOINING)])
    job.world_size = 8
    assert not examined(job).findings
    job.every = 20.0
    finding = only(job)
    assert (finding.code, finding.culprits) == ("hang-rendezvous", ())


def test_a_host_that_never_joined_is_named_with_the_reason() -> None:
    job = snapshot_series({}, others=[ProcessState(job_snapshots.JOINING)])
    job.world_size = 8
    last = job_snapshots.START + 2.0
    here = AskedHost("a", boxed(0).host)
    for other, words in (
        (AskedHost("c", None, "ssh fails with 'Connection refused'"), "Connection refused"),
        (AskedHost("c", "node-c"), "runs no rank of this job"),
    ):
        for age, expected in ((59.0, False), (61.0, True)):
            ranks = tuple(replace(boxed(number), started=last - age) for number in range(4))
            case = replace(examined(job, ranks).case, asked_hosts=(here, other))
            findings = diagnose(case).findings
            assert [one.code for one in findings] == ["hang-rendezvous"] * expected
            for finding in findings:
                (culprit,) = finding.culprits
                assert (culprit.rank, culprit.host) == (None, other.node or "c")
                assert finding.victims == (0, 1, 2, 3)
                assert "Host c never joined" in finding.title
                assert words in finding.cause


def test_hosts_that_all_joined_are_not_named() -> None:
    job = snapshot_series({}, others=[ProcessState(job_snapshots.JOINING)])
    ranks = tuple(replace(boxed(number), started=0.0) for number in range(4))
    case = replace(examined(job, ranks).case, asked_hosts=(AskedHost("c", None, "it is off"),))
    (finding,) = diagnose(case).findings
    assert finding.culprits == ()
    assert "Host c" not in finding.title


def test_a_dead_rank_is_reported_with_those_that_wait() -> None:
    finding = only(snapshot_series({0: [ProcessState(state="Z")]}))
    assert (finding.code, finding.severity) == ("hang-rank-dead", Severity.CRITICAL)
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(0, 1000)]
    assert finding.victims == (1, 2, 3)
    gone = only(SnapshotSeries({0: WAITING_IN_COLLECTIVE, 2: WAITING_IN_COLLECTIVE}, missing=(1,)))
    assert (gone.code, [culprit.rank for culprit in gone.culprits]) == ("hang-rank-dead", [1])


def test_samples_alone_show_a_straggler() -> None:
    late = [
        ProcessState(
            (*LOOP, "prepare util.py:3"), cpu=at * 0.1, active=True, gil=True, syscall=None
        )
        if at % 10
        else ProcessState(collective(), cpu=at * 0.1)
        for at in range(24)
    ]
    waits = [ProcessState(collective(), cpu=at * 0.01) for at in range(24)]
    finding = only(SnapshotSeries({0: waits, 1: late, 2: waits}, every=0.2, count=24))
    assert (finding.code, finding.severity) == ("straggler-other", Severity.WARNING)
    assert (finding.culprits[0].rank, finding.victims) == (1, (0, 2))
    assert "prepare() at util.py:3" in finding.title


def test_a_process_of_unknown_rank_is_named_by_its_pid() -> None:
    snapshots = [
        replace(
            snapshot, processes=tuple(replace(process, rank=None) for process in snapshot.processes)
        )
        for snapshot in snapshot_series({1: LOCKED}, ranks=2).snapshots()
    ]
    (finding,) = diagnose(job_snapshots.case(snapshots)).findings
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(None, 1001)]
    assert finding.title.startswith("A process waits in take() at util.py:31")
    assert finding.victims == ()


CALLS = st.lists(
    st.sampled_from(
        [
            *LOOP,
            *job_snapshots.BACKWARD,
            *job_snapshots.LOADING,
            *job_snapshots.JOINING,
            *job_snapshots.SAVING,
        ]
    )
    | st.builds(lambda name, line: f"{name} train.py:{line}", st.text(max_size=20), st.integers()),
    max_size=12,
)
SEEN = st.builds(
    ProcessState,
    calls=CALLS,
    state=st.sampled_from(["R", "S", "D", "T", "t", "Z", "X", None, "?"]),
    syscall=st.sampled_from([None, "futex", "flock /x, locked by itself", "read \x1b[2J", "x"]),
    cpu=st.floats(0, 100),
    active=st.none() | st.booleans(),
    gil=st.none() | st.booleans(),
    helpers=st.lists(CALLS, max_size=2),
    holder=CALLS,
    native=st.lists(st.text(max_size=10), max_size=3),
    child_cpu=st.none() | st.floats(0, 9),
    unread=st.booleans(),
)


@settings(max_examples=at_most(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    ranks=st.dictionaries(st.integers(0, 5), st.lists(SEEN, min_size=1, max_size=3), max_size=5),
    workers=st.dictionaries(st.integers(0, 5), st.lists(SEEN, min_size=1, max_size=3), max_size=3),
    missing=st.lists(st.integers(0, 9), max_size=2, unique=True),
    count=st.integers(1, 14),
    every=st.sampled_from([0.1, 1.0, 20.0]),
)
def test_every_snapshot_can_be_reported(
    ranks: dict[int, list[ProcessState]],
    workers: dict[int, list[ProcessState]],
    missing: list[int],
    count: int,
    every: float,
) -> None:
    job = SnapshotSeries(ranks, workers, tuple(missing), None, every, count)
    diagnosis = examined(job)
    for finding in diagnosis.findings:
        assert 0 < finding.confidence <= 1
        assert finding.title
        assert not {culprit.rank for culprit in finding.culprits} & set(finding.victims)
    assert terminal.render(diagnosis, width=80, colour=False)
    assert diagnosis_json.render(diagnosis)


def test_the_tree_marks_the_culprits() -> None:
    tree = examined(snapshot_series({1: LOCKED})).tree
    assert [(one.depth, one.ranks, one.culprit) for one in tree] == [
        (0, (0, 1, 2, 3), False),
        (1, (0, 2, 3), False),
        (1, (1,), True),
    ]
    assert tree[-1].calls == ("stand train.py:70", "take util.py:31")
    assert (tree[-1].doing, tree[1].operation) == ("lock", "all_reduce")


@pytest.mark.parametrize(
    ("number", "code", "expected"),
    [(None, 3, "a zombie, exit code 3"), (9, None, "a zombie, signal 9"), (None, None, "a zombie")],
)
def test_how_a_rank_that_is_gone_ended_is_evidence(
    number: int | None, code: int | None, expected: str
) -> None:
    case = job_snapshots.case(snapshot_series({1: [ProcessState(state="Z")]}).snapshots())
    end = ProcessEnd(1001, code, number, job_snapshots.START)
    (finding,) = diagnose(replace(case, ends=(end,))).findings
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("hang-rank-dead", [1])
    assert expected in [item.value for item in finding.evidence]
