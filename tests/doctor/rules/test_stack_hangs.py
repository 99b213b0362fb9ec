"""Hangs found in stacks: which rank the others wait for, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mgpu_doctor.case.model import Now, Outcome, ProcessEnd, Rank, State, Wait
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.report import diagnosis_json, terminal
from tests.support import job_snapshots
from tests.support.diagnoses import facts
from tests.support.diagnoses import rank as summary
from tests.support.failure_cases import error, lost_peer
from tests.support.job_snapshots import LOCKED, LOOP, WAITS, Scene, Seen, collective, scene, stuck
from tests.support.seeds import at_most


def examined(job: Scene, ranks: tuple[Rank, ...] = ()) -> Diagnosis:
    return diagnose(job_snapshots.case(job.snapshots(), ranks))


def only(job: Scene, ranks: tuple[Rank, ...] = ()) -> Finding:
    (found,) = examined(job, ranks).findings
    return found


def boxed(number: int, *, since: float | None = None, ended: float | None = None) -> Rank:
    """A rank with a box: waiting since, or with its newest step ended at, seconds before the last
    look."""
    last = job_snapshots.START + 2.0
    known = facts(summary(number, state=State.RUNNING, exit_code=None))
    made = replace(known, pid=1000 + number, steps=np.empty(0, STEP_DTYPE))
    if since is not None:
        made = replace(made, now=Now("wait", last - since, 5, None, None))
    if ended is not None:
        steps = np.zeros(1, STEP_DTYPE)
        steps["end_ns"] = int((last - ended) * 1e9)
        steps["wall_ns"] = 10_000_000
        made = replace(made, steps=steps)
    return made


def lines(found: Finding) -> list[str | None]:
    return [one.where for one in found.evidence if one.measure == f"rank {found.culprits[0].rank}"]


CALL = (*LOOP, "work util.py:31")
PERMANENT = {
    "lock": (Seen(CALL), "release-the-lock", ""),
    "thread": (Seen((*CALL, "join threading.py:9")), "release-the-lock", ""),
    "file": (Seen(CALL, syscall="flock /x, locked by itself"), "release-the-lock", "/x"),
    "a victim's file": (
        Seen(CALL, syscall="flock /x, locked by 1000 python"),
        "release-the-lock",
        "locked by 1000",
    ),
    "gil": (Seen(CALL, syscall="pause", gil=True), "release-the-gil", "GIL"),
    "own pipe": (
        Seen(CALL, syscall="read pipe:[7], written by itself"),
        "bound-the-wait",
        "read pipe:[7]",
    ),
    "prompt": (Seen((*CALL, "interaction pdb.py:9")), "answer-or-remove", ""),
    "stopped": (Seen(CALL, state="T"), "continue", ""),
}
PASSING = {
    "sleep": (Seen(CALL, syscall="clock_nanosleep"), "no-sleep", ""),
    "pipe": (
        Seen(CALL, syscall="read pipe:[7], written by 12 sh"),
        "bound-the-wait",
        "read pipe:[7]",
    ),
    "child": (Seen((*CALL, "wait subprocess.py:9")), "see-the-child", ""),
    "another's file": (
        Seen(CALL, syscall="flock /x, locked by 9 sh"),
        "release-the-lock",
        "locked by 9 sh",
    ),
    "no one's file": (Seen(CALL, syscall="flock /x"), "release-the-lock", "/x"),
    "busy helper": (Seen(CALL, helpers=[("upload util.py:4",)]), "release-the-lock", ""),
}


@pytest.mark.parametrize("how", PERMANENT)
def test_a_rank_that_cannot_go_on_is_critical_at_once(how: str) -> None:
    seen, fix, detail = PERMANENT[how]
    found = only(scene({2: [seen]}))
    assert (found.code, found.severity) == ("hang-rank-behind", Severity.CRITICAL)
    assert [(one.rank, one.pid, one.host) for one in found.culprits] == [(2, 1002, "node-a")]
    assert found.victims == (0, 1, 3)
    assert found.fixes[0].id == fix
    assert all(text in found.title for text in (detail, "util.py:31", "all_reduce at train.py:65"))
    assert lines(found) == [f"{job_snapshots.HOME}/util.py:31"]
    assert found.confidence >= 0.75


@pytest.mark.parametrize("how", PASSING)
def test_a_rank_that_may_go_on_is_a_warning(how: str) -> None:
    seen, fix, detail = PASSING[how]
    found = only(scene({2: [seen]}))
    assert (found.code, found.severity) == ("hang-rank-behind", Severity.WARNING)
    assert found.confidence <= 0.6
    assert (found.fixes[0].id, found.fixes[-1].id) == (fix, "look-again")
    assert detail in found.title


@pytest.mark.parametrize("how", PASSING)
def test_a_long_wait_is_a_hang(how: str) -> None:
    job = scene({2: [PASSING[how][0]]})
    job.every = 20.0
    found = only(job)
    assert (found.severity, found.confidence) == (Severity.CRITICAL, 0.93)


def test_the_scheduler_shows_how_long_no_thread_has_run() -> None:
    waits = [Seen(collective(), rested=400.0)]
    sleeps = [replace(PASSING["sleep"][0], rested=300.0)]
    found = only(scene({2: sleeps}, others=waits))
    assert (found.severity, found.confidence) == (Severity.CRITICAL, 0.93)
    (told,) = (one for one in found.evidence if one.source == "scheduler")
    assert told.value == 300.0


def test_black_boxes_show_how_long_the_others_have_waited() -> None:
    job = scene({2: [PASSING["sleep"][0]]})
    waiting = tuple(boxed(number, since=42.0) for number in (0, 1, 3))
    found = only(job, (*waiting, boxed(2)))
    assert found.severity is Severity.CRITICAL
    assert any(one.value == 42.0 for one in found.evidence)


def test_a_rank_that_waited_until_the_job_was_ended_counts_until_then() -> None:
    job = scene({2: [PASSING["sleep"][0]]})
    over = job_snapshots.START + 42.0
    waiting = [boxed(number, since=5.0) for number in (0, 1, 3)]
    ranks = [replace(rank, state=State.DEAD, ended=over) for rank in (*waiting, boxed(2))]
    told = examined(job, tuple(ranks)).findings
    (found,) = (one for one in told if one.code == "hang-rank-behind")
    assert found.severity is Severity.CRITICAL
    assert any(one.value == 45.0 for one in found.evidence)


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
    case = job_snapshots.case(scene({2: [PASSING["sleep"][0]]}).snapshots(), (*ended, behind))
    case = replace(case, job=replace(case.job, ended=over, outcome=Outcome.FAILED, exit_code=1))
    findings = diagnose(case).findings
    assert [finding.code for finding in findings] == [*codes, "hang-rank-behind"]
    assert [culprit.rank for culprit in findings[-1].culprits] == [2]


def test_a_job_that_is_over_is_not_to_be_checked_again() -> None:
    job = scene({2: [PASSING["sleep"][0]]})
    made = job_snapshots.case(job.snapshots())
    assert [fix.id for fix in diagnose(made).findings[0].fixes][-1] == "look-again"
    over = replace(made.job, ended=job_snapshots.START + 42.0, outcome=Outcome.KILLED)
    (found,) = (
        one for one in diagnose(replace(made, job=over)).findings if one.code == "hang-rank-behind"
    )
    assert found.fixes[-1].id == "look-there"
    assert "util.py:31" in found.fixes[-1].summary


def test_a_step_that_ended_meanwhile_shows_that_the_job_moves() -> None:
    ranks = tuple(boxed(number, ended=0.5) for number in range(4))
    codes = {one.code for one in examined(scene({2: LOCKED}), ranks).findings}
    assert "hang-rank-behind" not in codes


def test_a_second_hang_at_the_place_of_the_first_is_reported() -> None:
    """Snapshots of an earlier hang are in the recording, and steps have passed since."""
    job = scene({2: LOCKED}, ranks=4)
    earlier = tuple(replace(snapshot, at=snapshot.at - 3600) for snapshot in job.snapshots())
    ranks = tuple(boxed(number, ended=60.0) for number in range(4))
    case = job_snapshots.case((*earlier, *job.snapshots()), ranks)
    (found,) = (one for one in diagnose(case).findings if one.code.startswith("hang-"))
    assert (found.code, [one.rank for one in found.culprits]) == ("hang-rank-behind", [2])
    assert not any(isinstance(one.value, float) and one.value > 3000 for one in found.evidence)


def test_a_job_that_completed_has_no_hang() -> None:
    case = job_snapshots.case(scene({2: LOCKED}).snapshots())
    done = replace(case, job=replace(case.job, outcome=Outcome.COMPLETED))
    assert diagnose(case).findings
    assert diagnose(done).findings == ()
    assert diagnose(done).tree == ()


QUIET = {
    "saves": [Seen(job_snapshots.SAVING, syscall="write /x")],
    "compiles": [Seen(job_snapshots.COMPILING)],
    "imports": [Seen(job_snapshots.IMPORTING)],
}


@pytest.mark.parametrize("how", QUIET)
def test_legitimate_work_is_reported_only_after_a_long_time(how: str) -> None:
    job = scene({0: QUIET[how]})
    assert not examined(job).findings
    job.every = 30.0
    assert only(job).code == "hang-rank-behind"


def test_a_loop_is_reported_from_the_third_snapshot_on() -> None:
    spin = job_snapshots.moving((*LOOP, "spin util.py:9"), 3, step=1.0, active=True, gil=True)
    spin = [replace(one, syscall=None) for one in spin]
    job = scene({2: spin})
    found = only(job)
    assert (found.severity, found.confidence) == (Severity.WARNING, 0.5)
    assert found.fixes[0].id == "end-the-loop"
    assert "spin() at util.py:9" in found.title
    job.count = 2
    assert not examined(job).findings


def test_a_rank_that_computes_in_a_library_is_a_warning_however_long() -> None:
    calls = (*LOOP, "clean util.py:9", "match re/__init__.py:166")
    busy = job_snapshots.moving(calls, 3, step=1.0, active=True, gil=False)
    waits = [Seen(job_snapshots.collective(), rested=90.0)]
    found = only(scene({2: [replace(one, syscall=None) for one in busy]}, others=waits))
    assert (found.code, found.severity) == ("hang-rank-behind", Severity.WARNING)
    assert (found.confidence, found.culprits[0].rank) == (0.6, 2)
    assert f"{job_snapshots.HOME}/util.py:9" in lines(found)


def test_a_rank_that_waits_for_its_worker_is_at_the_line_of_the_worker() -> None:
    job = scene({1: [Seen(job_snapshots.LOADING, syscall="poll")]}, ranks=2)
    job.workers = {
        1: [Seen((*job_snapshots.FETCHING, "DS.__getitem__ data.py:9", "take util.py:31"))]
    }
    found = only(job)
    assert (found.severity, found.culprits[0].rank) == (Severity.CRITICAL, 1)
    assert "data-loader worker 5001" in found.title
    assert lines(found) == [f"{job_snapshots.HOME}/util.py:31"]
    assert found.fixes[0].id == "mend-the-data-set"


def test_ranks_that_wait_for_a_gpu_may_be_computing() -> None:
    device = [Seen((*LOOP, "synchronize torch/cuda/__init__.py:800"))]
    sleeps = scene({2: [PASSING["sleep"][0]]}, others=device)
    assert not examined(sleeps).findings
    sleeps.every = 20.0
    assert only(sleeps).code == "hang-rank-behind"
    assert only(scene({2: LOCKED}, others=device)).severity is Severity.CRITICAL


def test_a_library_is_named_with_its_line_and_the_call() -> None:
    inside = (*CALL, "on_step_end transformers/callback.py:88", "wait threading.py:3")
    found = only(scene({2: [Seen(inside)]}))
    place = "in on_step_end() at transformers/callback.py:88, called at util.py:31,"
    assert f"Rank 2 waits {place} for a lock" in found.title
    assert lines(found) == [f"{job_snapshots.HOME}/util.py:31"]


def test_a_wait_that_blocks_no_one_is_no_hang() -> None:
    assert not examined(scene({0: LOCKED}, ranks=1)).findings
    assert not examined(scene(dict.fromkeys(range(4), LOCKED))).findings
    alone = scene({0: stuck("f util.py:3", syscall="pause", gil=True)}, ranks=1)
    assert only(alone).code == "hang-rank-behind"


def test_all_ranks_at_one_place_is_a_known_gap() -> None:
    diagnosis = examined(scene({}))
    assert not diagnosis.findings
    (gap,) = (one for one in diagnosis.unexamined if one.probe == "who is waited for")
    assert "all_reduce at train.py:65" in gap.reason


def test_different_collectives_are_reported_with_both_places() -> None:
    other = [Seen(collective("broadcast", 70))]
    found = only(scene({1: other}, ranks=2))
    assert (found.code, found.severity) == ("hang-collective-mismatch", Severity.CRITICAL)
    assert found.culprits == ()
    assert {"train.py:65", "train.py:70"} <= {
        str(one.where).rpartition("/")[2] for one in found.evidence
    }
    four = only(scene({1: other}))
    assert [one.rank for one in four.culprits] == [1]
    assert four.confidence <= 0.6


def test_the_same_collective_in_another_line_is_a_suspicion() -> None:
    found = only(scene({1: [Seen(collective("all_reduce", 70))]}, ranks=2))
    assert (found.severity, found.confidence) == (Severity.WARNING, 0.45)


def test_a_line_reached_on_two_paths_is_reported_with_the_callers() -> None:
    def way(number: int) -> list[Seen]:
        return [Seen((*LOOP, f"step train.py:{number}", *collective()[-3:]))]

    found = only(scene({1: way(41)}, ranks=2, others=way(40)))
    sites = [str(one.where).rpartition("/")[2] for one in found.evidence[:2]]
    assert sites == ["train.py:40", "train.py:41"]


def test_pipeline_stages_may_wait_in_different_places() -> None:
    stages = {0: [Seen(collective("send", 50))], 1: [Seen(collective("recv", 52))]}
    assert not examined(Scene(stages)).findings
    found = only(scene({}, others=[Seen(collective("recv", 52))]))
    assert found.code == "hang-collective-mismatch"
    assert {one.value for one in found.evidence[:1]} == {"in recv"}


def test_ranks_that_never_start_are_named() -> None:
    job = Scene({rank: [Seen(job_snapshots.JOINING)] for rank in (0, 1, 3)}, missing=(2,))
    found = only(job)
    assert (found.code, found.severity) == ("hang-rendezvous", Severity.CRITICAL)
    assert [one.rank for one in found.culprits] == [2]
    assert found.victims == (0, 1, 3)
    assert found.evidence[0].value == 3
    assert found.evidence[0].baseline == 4


def test_a_rank_that_is_blocked_before_it_joins_is_named_with_its_line() -> None:
    late = [Seen((*job_snapshots.ROOT, "download util.py:4"), syscall="clock_nanosleep")]
    found = only(scene({1: late}, others=[Seen(job_snapshots.JOINING)]))
    assert found.code == "hang-rendezvous"
    assert [one.rank for one in found.culprits] == [1]
    assert "download() at util.py:4" in found.title
    imports = [Seen(job_snapshots.IMPORTING, cpu=at * 0.9, active=True) for at in range(3)]
    assert not examined(scene({1: imports}, others=[Seen(job_snapshots.JOINING)])).findings


def test_ranks_that_all_wait_to_join_may_be_just_starting() -> None:
    job = scene({}, others=[Seen(job_snapshots.JOINING)], ranks=2)
    assert not examined(job).findings
    last = job_snapshots.START + 2.0
    young = tuple(replace(boxed(number), started=last - 20.0) for number in range(2))
    assert not examined(job, young).findings
    old = tuple(replace(boxed(number), started=last - 90.0) for number in range(2))
    found = only(job, old)
    assert (found.code, found.severity) == ("hang-rendezvous", Severity.WARNING)
    assert found.culprits == ()


def test_only_a_permanent_wait_makes_the_job_hung() -> None:
    ranks = tuple(boxed(number) for number in range(4))
    lasting = examined(scene({2: LOCKED}), ranks)
    assert lasting.case.job.outcome is Outcome.HUNG
    assert [one.state for one in lasting.ranks] == ["waiting", "waiting", "hung", "waiting"]
    assert lasting.ranks[2].where == "take() util.py:31"
    assert lasting.ranks[0].where == "all_reduce train.py:65"
    passing = examined(scene({2: [PASSING["sleep"][0]]}), ranks)
    assert passing.case.job.outcome is Outcome.RUNNING


def test_a_busy_child_process_is_no_hang() -> None:
    calls = (*CALL, "wait subprocess.py:9")
    works = scene({2: [Seen(calls, child_cpu=at * 0.5) for at in range(3)]})
    assert not examined(works).findings
    rests = scene({2: [Seen(calls, child_cpu=3.0)]})
    assert only(rests).code == "hang-rank-behind"


def test_ranks_of_other_hosts_may_still_start() -> None:
    job = scene({}, others=[Seen(job_snapshots.JOINING)])
    job.world_size = 8
    assert not examined(job).findings
    job.every = 20.0
    found = only(job)
    assert (found.code, found.culprits) == ("hang-rendezvous", ())


def test_a_dead_rank_is_reported_with_those_that_wait() -> None:
    found = only(scene({0: [Seen(state="Z")]}))
    assert (found.code, found.severity) == ("hang-rank-dead", Severity.CRITICAL)
    assert [(one.rank, one.pid) for one in found.culprits] == [(0, 1000)]
    assert found.victims == (1, 2, 3)
    gone = only(Scene({0: WAITS, 2: WAITS}, missing=(1,)))
    assert (gone.code, [one.rank for one in gone.culprits]) == ("hang-rank-dead", [1])


def test_samples_alone_show_a_straggler() -> None:
    late = [
        Seen((*LOOP, "prepare util.py:3"), cpu=at * 0.1, active=True, gil=True, syscall=None)
        if at % 10
        else Seen(collective(), cpu=at * 0.1)
        for at in range(24)
    ]
    waits = [Seen(collective(), cpu=at * 0.01) for at in range(24)]
    found = only(Scene({0: waits, 1: late, 2: waits}, every=0.2, count=24))
    assert (found.code, found.severity) == ("straggler-other", Severity.WARNING)
    assert (found.culprits[0].rank, found.victims) == (1, (0, 2))
    assert "prepare() at util.py:3" in found.title


def test_a_process_of_unknown_rank_is_named_by_its_pid() -> None:
    snapshots = [
        replace(snapshot, processes=tuple(replace(one, rank=None) for one in snapshot.processes))
        for snapshot in scene({1: LOCKED}, ranks=2).snapshots()
    ]
    (found,) = diagnose(job_snapshots.case(snapshots)).findings
    assert [(one.rank, one.pid) for one in found.culprits] == [(None, 1001)]
    assert found.title.startswith("A process waits in take() at util.py:31")
    assert found.victims == ()


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
    Seen,
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
    ranks: dict[int, list[Seen]],
    workers: dict[int, list[Seen]],
    missing: list[int],
    count: int,
    every: float,
) -> None:
    job = Scene(ranks, workers, tuple(missing), None, every, count)
    diagnosis = examined(job)
    for one in diagnosis.findings:
        assert 0 < one.confidence <= 1
        assert one.title
        assert not {culprit.rank for culprit in one.culprits} & set(one.victims)
    assert terminal.render(diagnosis, width=80, colour=False)
    assert diagnosis_json.render(diagnosis)


def test_the_tree_marks_the_culprits() -> None:
    tree = examined(scene({1: LOCKED})).tree
    assert [(one.depth, one.ranks, one.culprit) for one in tree] == [
        (0, (0, 1, 2, 3), False),
        (1, (0, 2, 3), False),
        (1, (1,), True),
    ]
    assert tree[-1].calls == ("stand train.py:70", "take util.py:31")
    assert (tree[-1].doing, tree[1].operation) == ("lock", "all_reduce")


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(None, 3, "a zombie, exit code 3"), (9, None, "a zombie, signal 9"), (None, None, "a zombie")],
)
def test_how_a_rank_that_is_gone_ended_is_evidence(
    number: int | None, code: int | None, told: str
) -> None:
    case = job_snapshots.case(scene({1: [Seen(state="Z")]}).snapshots())
    end = ProcessEnd(1001, code, number, job_snapshots.START)
    (found,) = diagnose(replace(case, ends=(end,))).findings
    assert (found.code, [one.rank for one in found.culprits]) == ("hang-rank-dead", [1])
    assert told in [one.value for one in found.evidence]
