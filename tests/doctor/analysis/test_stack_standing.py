"""Which rank blocks a hanging job, by snapshots; no rank if the job moves or nothing shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.analysis.stacks.hang_analysis import (
    Hang,
    Kind,
    analyse_hang,
    explain_inconclusive,
    list_unclear_processes,
)
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.job_snapshots import Loop
from tests.support import job_snapshots
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


def kind_and_culprits(hang: Hang | None) -> tuple[Kind, list[int | None]] | None:
    if hang is None:
        return None
    return hang.kind, [culprit.state.rank for culprit in hang.culprits]


def test_who_stands_outside_of_the_collective_is_behind() -> None:
    hang = analyse_hang(snapshot_series({1: LOCKED}).snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert [one.rank for one in hang.waiting] == [0, 2, 3]
    assert (hang.seconds, hang.snapshots, hang.complete) == (2.0, 3, True)


def test_between_two_ranks_and_in_a_pipeline_the_minority_is_not_blamed() -> None:
    assert kind_and_culprits(analyse_hang(snapshot_series({0: LOCKED}, ranks=2).snapshots())) == (
        Kind.BEHIND,
        [0],
    )
    stages = {
        0: [ProcessState(collective("send", 50))],
        1: LOCKED,
        2: [ProcessState(collective("recv", 52))],
        3: [ProcessState(collective("recv", 52))],
    }
    assert kind_and_culprits(analyse_hang(SnapshotSeries(stages).snapshots())) == (Kind.BEHIND, [1])
    most_stand = SnapshotSeries({0: WAITING_IN_COLLECTIVE, 1: LOCKED, 2: LOCKED, 3: LOCKED})
    assert kind_and_culprits(analyse_hang(most_stand.snapshots())) == (Kind.BEHIND, [1, 2, 3])


@pytest.mark.parametrize("called", ["FuncRegistry.__call__", "__call__"])  # since, before 3.11
def test_a_function_that_tensorflow_calls_in_a_thread_of_its_own_is_what_a_rank_is_in(
    called: str,
) -> None:
    executes = (*LOOP, "quick_execute tensorflow/python/eager/execute.py:53")
    function = (f"{called} tensorflow/python/ops/script_ops.py:269", "read data.py:7")
    healthy = [ProcessState(executes)]

    def analyse(*helpers: Sequence[str]) -> Hang | None:
        other = [ProcessState(executes, helpers=helpers)]
        return analyse_hang(SnapshotSeries({0: healthy, 1: other}).snapshots())

    hang = analyse(function)
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert hang.culprits[0].state.place == job_snapshots.frames(["read data.py:7"])[0]
    assert kind_and_culprits(analyse()) == (Kind.TOGETHER, [])
    works = ("log util.py:5",)  # which of the two the step waits for is not known
    assert kind_and_culprits(analyse(function, works)) == (Kind.TOGETHER, [])


def test_trainers_and_servers_wait_for_a_trainer_that_makes_no_remote_call() -> None:
    processes = {0: [ProcessState(SERVING)], 1: [ProcessState(REMOTE_CALL)], 2: LOCKED}
    assert kind_and_culprits(analyse_hang(SnapshotSeries(processes).snapshots())) == (
        Kind.BEHIND,
        [2],
    )
    processes[2] = [ProcessState(REMOTE_CALL)]  # a thread of the server may be stuck
    hang = analyse_hang(SnapshotSeries(processes).snapshots())
    assert kind_and_culprits(hang) == (Kind.APART, [])
    assert "remote calls" in str(explain_inconclusive(hang))


def test_one_look_shows_no_motion_and_decides_nothing() -> None:
    assert analyse_hang(snapshot_series({1: LOCKED}).snapshots()[:1]) is None
    short = snapshot_series({1: LOCKED})
    short.every = 0.2
    assert analyse_hang(short.snapshots()) is None
    assert analyse_hang(()) is None


MOVES: dict[str, Mapping[int, Sequence[ProcessState]]] = {
    "culprit uses time": {1: busy_process((*LOOP, "f util.py:3"), 3)},
    "victims use time": dict.fromkeys((0, 2, 3), busy_process(collective(), 3)) | {1: LOCKED},
    "another line": {1: [ProcessState((*LOOP, f"f util.py:{line}")) for line in (3, 4, 5)]},
    "imports": {1: busy_process(job_snapshots.IMPORTING, 3, active=True, syscall=None)},
    "forward": {1: busy_process((*LOOP, "forward model.py:4"), 3, step=0.9, active=True, gil=True)}
    | {0: busy_process(collective(), 3)},
    "a loader's worker works": {1: [ProcessState(job_snapshots.LOADING, syscall="poll")]},
    "ends": {1: [ProcessState(("_shutdown threading.py:1590",))]},
    "a stack could not be read": {1: [ProcessState(unread=True)]},
}


@pytest.mark.parametrize("name", MOVES)
def test_a_job_that_moves_or_cannot_be_seen_does_not_stand(name: str) -> None:
    job = snapshot_series(MOVES[name])
    if "worker" in name:
        job.workers = {1: busy_process((*job_snapshots.FETCHING, "get data.py:3"), 3, active=True)}
    assert analyse_hang(job.snapshots()) is None


def test_what_stood_only_before_is_not_reported() -> None:
    released = [*LOCKED, *LOCKED, ProcessState(collective())]
    assert analyse_hang(snapshot_series({1: released}).snapshots()) is None


def test_one_look_suffices_where_the_scheduler_tells_that_nobody_has_run() -> None:
    waits = [ProcessState(collective(), rested=300.0)]
    late = blocked_process("f util.py:3", syscall="clock_nanosleep", rested=90.0)
    hang = analyse_hang(snapshot_series({1: late}, others=waits).snapshots()[:1])
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert hang.seconds == 90.0
    just = blocked_process("f util.py:3", rested=0.01)
    assert analyse_hang(snapshot_series({1: just}, others=waits).snapshots()[:1]) is None


def test_who_sleeps_again_and_again_is_waited_for_while_the_others_do_not_run() -> None:
    polls = busy_process((*LOOP, "f util.py:3"), 3, step=0.01, syscall="clock_nanosleep")
    hang = analyse_hang(snapshot_series({1: polls}).snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert hang.seconds == 2.0
    run = busy_process(collective(), 3, step=0.01)
    assert (
        analyse_hang(snapshot_series({1: polls}, others=run).snapshots()) is None
    )  # a step was over meanwhile
    works = busy_process((*LOOP, "f util.py:3"), 3, step=0.2, syscall="clock_nanosleep")
    assert analyse_hang(snapshot_series({1: works}).snapshots()) is None
    goes_on = [replace(poll, calls=(*LOOP, f"f util.py:{at}")) for at, poll in enumerate(polls, 3)]
    assert analyse_hang(snapshot_series({1: goes_on}).snapshots()) is None


def test_a_rank_that_polls_on_several_lines_is_behind_once_the_others_have_waited_long() -> None:
    asleep = busy_process((*LOOP, "f util.py:4"), 3, step=0.01, syscall="clock_nanosleep")
    polls = [asleep[0], replace(asleep[1], calls=(*LOOP, "f util.py:3"), active=True), asleep[2]]
    for polling in (polls, polls[1:]):
        for rested, expected in ((20.0, (Kind.BEHIND, [1])), (3.0, None)):
            waits = [ProcessState(collective(), rested=rested)]
            job = snapshot_series({1: polling}, others=waits)
            assert kind_and_culprits(analyse_hang(job.snapshots()[: len(polling)])) == expected
    reads = [replace(poll, syscall="recvfrom socket:[1]") for poll in polls]  # a download moves
    long = [ProcessState(collective(), rested=20.0)]
    assert analyse_hang(snapshot_series({1: reads}, others=long).snapshots()) is None
    slept = [replace(polls[1], cpu=9.99), *asleep]  # caught once between two sleeps
    just = [ProcessState(collective(), rested=3.0)]
    assert kind_and_culprits(
        analyse_hang(replace(snapshot_series({1: slept}, others=just), count=4).snapshots())
    ) == (Kind.BEHIND, [1])
    elsewhere = [replace(polls[0], calls=(*LOOP, "g util.py:9")), *polls[1:]]
    waits = [ProcessState(collective(), rested=20.0)]
    assert analyse_hang(snapshot_series({1: elsewhere}, others=waits).snapshots()) is None


@pytest.mark.parametrize("active", [True, False])
def test_a_rank_that_sleeps_at_one_line_may_be_caught_waiting_for_a_core(active: bool) -> None:
    """As on busy cores: it is awake in some snapshots, also in the newest one. Its stack may have
    been read (`active`) after or before it woke up."""
    asleep = busy_process((*LOOP, "f util.py:4"), 4, step=0.004, syscall="clock_nanosleep")
    awake = [replace(each, state="R", syscall=None, active=active) for each in asleep]
    job = snapshot_series({1: [asleep[0], awake[1], asleep[2], awake[3]]})
    assert kind_and_culprits(analyse_hang(replace(job, count=4).snapshots())) == (Kind.BEHIND, [1])
    once = snapshot_series({1: [awake[0], awake[1], asleep[2], awake[3]]})
    assert analyse_hang(replace(once, count=4).snapshots()) is None
    long = [ProcessState(collective(), rested=20.0)]
    waited = snapshot_series({1: [awake[0], asleep[1], awake[2]]}, others=long)
    assert kind_and_culprits(analyse_hang(waited.snapshots())) == (Kind.BEHIND, [1])


def test_a_rank_that_polls_seldom_on_several_lines_is_behind_too() -> None:
    """It uses less CPU time than a blocked one may."""
    asleep = busy_process((*LOOP, "f util.py:4"), 3, step=0.001, syscall="clock_nanosleep")
    polls = [asleep[0], replace(asleep[1], calls=(*LOOP, "f util.py:3"), active=True), asleep[2]]
    for rested, expected in ((20.0, (Kind.BEHIND, [1])), (3.0, None)):
        job = snapshot_series({1: polls}, others=[ProcessState(collective(), rested=rested)])
        assert kind_and_culprits(analyse_hang(job.snapshots())) == expected


def test_who_spins_in_its_wait_does_not_shorten_what_the_scheduler_tells() -> None:
    spins = busy_process((*LOOP, "barrier " + job_snapshots.C10D + ":9"), 3, step=1.0, active=True)
    late = blocked_process("f util.py:3", syscall="clock_nanosleep", rested=90.0)
    hang = analyse_hang(snapshot_series({1: late}, others=spins).snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert hang.seconds == 90.0


def test_a_stopped_rank_is_reported_at_the_first_look_a_traced_one_when_it_lasts() -> None:
    job = snapshot_series({1: [ProcessState(collective(), state="T")]})
    assert kind_and_culprits(analyse_hang(job.snapshots()[:1])) == (Kind.BEHIND, [1])
    traced = snapshot_series({1: [ProcessState(collective(), state="t")]})
    assert analyse_hang(traced.snapshots()[:1]) is None
    assert kind_and_culprits(analyse_hang(traced.snapshots())) == (Kind.BEHIND, [1])


def test_a_dead_rank_is_reported_at_the_first_look_if_a_collective_waits_for_it() -> None:
    dead = snapshot_series({1: [ProcessState(state="Z")]})
    assert kind_and_culprits(analyse_hang(dead.snapshots()[:1])) == (Kind.ABSENT, [1])
    between_two = snapshot_series(
        {1: [ProcessState(state="Z")]}, others=[ProcessState(collective("recv"))]
    )
    assert analyse_hang(between_two.snapshots()[:1]) is None
    assert kind_and_culprits(analyse_hang(between_two.snapshots())) == (Kind.ABSENT, [1])


def test_ranks_that_end_one_after_the_other_are_not_missed() -> None:
    works = SnapshotSeries(
        {
            0: busy_process((*LOOP, "save util.py:3"), 3),
            1: [ProcessState(state="Z")],
            2: WAITING_IN_COLLECTIVE,
        }
    )
    assert analyse_hang(works.snapshots()) is None
    destroys = SnapshotSeries(
        {0: [ProcessState(collective("destroy_process_group"))], 1: [ProcessState(state="Z")]}
    )
    assert analyse_hang(destroys.snapshots()[:1]) is None
    ending = SnapshotSeries(
        {0: [ProcessState(("_shutdown threading.py:1590",))], 1: [ProcessState(state="Z")]}
    )
    assert analyse_hang(ending.snapshots()) is None


def test_a_rank_without_a_process_is_missed_once_the_others_stand() -> None:
    job = SnapshotSeries(dict.fromkeys((0, 1, 3), WAITING_IN_COLLECTIVE), missing=(2,))
    assert analyse_hang(job.snapshots()[:1]) is None
    hang = analyse_hang(job.snapshots())
    assert kind_and_culprits(hang) == (Kind.ABSENT, [])
    assert hang is not None
    assert hang.missing == (2,)


def test_who_waits_for_others_to_join_is_a_victim() -> None:
    joins = [ProcessState(job_snapshots.JOINING)]
    late = snapshot_series({1: [ProcessState((*job_snapshots.ROOT, "f util.py:4"))]}, others=joins)
    assert kind_and_culprits(analyse_hang(late.snapshots())) == (Kind.JOINING, [1])
    absent = analyse_hang(SnapshotSeries({0: joins, 1: joins}, missing=(2,)).snapshots())
    assert kind_and_culprits(absent) == (Kind.JOINING, [])
    imports = snapshot_series(
        {1: busy_process(job_snapshots.IMPORTING, 3, active=True)}, others=joins
    )
    assert analyse_hang(imports.snapshots()) is None


def test_all_in_one_place_blames_nobody_and_says_so() -> None:
    hang = analyse_hang(snapshot_series({}).snapshots())
    assert kind_and_culprits(hang) == (Kind.TOGETHER, [])
    assert "all_reduce at train.py:65" in (explain_inconclusive(hang) or "")
    assert explain_inconclusive(analyse_hang(snapshot_series({1: LOCKED}).snapshots())) is None
    assert explain_inconclusive(None) is None


def test_of_different_collectives_one_is_wrong_only_against_two_that_agree() -> None:
    other = [ProcessState(collective("broadcast", 70))]
    assert kind_and_culprits(analyse_hang(snapshot_series({1: other}, ranks=4).snapshots())) == (
        Kind.APART,
        [1],
    )
    assert kind_and_culprits(analyse_hang(snapshot_series({1: other}, ranks=3).snapshots())) == (
        Kind.APART,
        [1],
    )
    elsewhere = [ProcessState(collective("all_reduce", 70))]
    assert kind_and_culprits(
        analyse_hang(snapshot_series({1: elsewhere}, ranks=3).snapshots())
    ) == (
        Kind.APART,
        [],
    )
    assert kind_and_culprits(analyse_hang(snapshot_series({1: other}, ranks=2).snapshots())) == (
        Kind.APART,
        [],
    )
    two = snapshot_series({1: other, 2: other}, ranks=8)
    assert kind_and_culprits(analyse_hang(two.snapshots())) == (Kind.APART, [])


TRAINING, EVALUATING, AROUND_BOTH = (
    Loop(f"{job_snapshots.HOME}/train.py", *lines) for lines in ((55, 70), (74, 78), (80, 85))
)


@pytest.mark.parametrize(
    ("line", "left", "ranks", "loops", "culprits"),
    [
        (75, (1,), 2, [TRAINING], [1]),
        (75, (0,), 2, [TRAINING], [0]),
        (75, (1,), 3, [TRAINING], [1]),
        (75, (0, 1), 3, [TRAINING], []),  # the one that is left may have a batch too many
        (75, (0, 1), 4, [TRAINING], []),
        (75, (1,), 2, [], []),
        (50, (1,), 2, [TRAINING], []),
        (75, (1,), 2, [TRAINING, EVALUATING], []),
        (75, (1,), 2, [TRAINING, AROUND_BOTH], []),
    ],
)
def test_a_rank_that_has_left_the_loop_of_the_others_is_waited_for(
    line: int, left: tuple[int, ...], ranks: int, loops: list[Loop], culprits: list[int]
) -> None:
    behind = [
        ProcessState(
            (
                *job_snapshots.ROOT,
                f"Job.train train.py:{line}",
                f"barrier {job_snapshots.C10D}:5356",
            )
        )
    ]
    snapshots = snapshot_series(
        dict.fromkeys(left, behind), ranks=ranks, others=[ProcessState(job_snapshots.BACKWARD)]
    )
    found = analyse_hang([replace(each, loops=tuple(loops)) for each in snapshots.snapshots()])
    assert kind_and_culprits(found) == (Kind.APART, culprits)
    assert found is not None
    assert found.left_loop == (TRAINING if culprits else None)


def test_where_there_are_several_groups_nobody_is_wrong_by_being_alone() -> None:
    fsdp = [
        ProcessState(
            (
                *LOOP,
                "unshard torch/distributed/fsdp/_runtime_utils.py:300",
                f"all_gather_into_tensor {job_snapshots.C10D}:9",
            )
        )
    ]
    other = [ProcessState(collective("broadcast", 70))]
    assert kind_and_culprits(
        analyse_hang(snapshot_series({1: other}, others=fsdp).snapshots())
    ) == (
        Kind.APART,
        [],
    )
    received = [ProcessState(collective("recv", 70))]
    assert kind_and_culprits(analyse_hang(snapshot_series({1: received}).snapshots())) == (
        Kind.APART,
        [],
    )


@pytest.mark.parametrize("call", ["all_gather_single", "reduce_scatter_single"])
def test_the_newer_names_of_collectives_are_waited_in_too(call: str) -> None:
    """torch 2.13 calls them under fully_shard, where who waits is behind nobody."""
    sharded = [
        ProcessState(
            (*LOOP, "unshard torch/distributed/fsdp/x.py:3", f"{call} {job_snapshots.C10D}:9")
        )
    ]
    assert kind_and_culprits(
        analyse_hang(snapshot_series({1: LOCKED}, others=sharded).snapshots())
    ) == (
        Kind.BEHIND,
        [1],
    )
    different = snapshot_series(
        {1: [ProcessState(collective("all_reduce", 70))]}, others=sharded, ranks=2
    )
    assert kind_and_culprits(analyse_hang(different.snapshots())) == (Kind.APART, [])


def test_if_all_receive_nobody_sends() -> None:
    receives = [ProcessState(collective("recv", 52))]
    assert kind_and_culprits(analyse_hang(snapshot_series({}, others=receives).snapshots())) == (
        Kind.APART,
        [],
    )
    elsewhere = snapshot_series({}, others=receives)
    elsewhere.world_size = 8
    assert kind_and_culprits(analyse_hang(elsewhere.snapshots())) == (Kind.TOGETHER, [])


def test_a_wait_for_a_gpu_decides_nothing() -> None:
    device = [ProcessState((*LOOP, "synchronize torch/cuda/__init__.py:800"))]
    hang = analyse_hang(snapshot_series({1: device}).snapshots())
    assert kind_and_culprits(hang) == (Kind.APART, [])
    assert "GPU" in (explain_inconclusive(hang) or "")
    item = busy_process(
        (*LOOP, "log train.py:77"), 3, step=1.0, active=True, gil=False, syscall=None
    )
    assert kind_and_culprits(analyse_hang(snapshot_series({1: item}).snapshots())) == (
        Kind.APART,
        [],
    )


def test_ranks_under_ddp_wait_in_the_backward_pass() -> None:
    backward = [ProcessState(job_snapshots.BACKWARD)]
    assert kind_and_culprits(
        analyse_hang(snapshot_series({2: LOCKED}, others=backward).snapshots())
    ) == (
        Kind.BEHIND,
        [2],
    )
    works = snapshot_series(
        {0: busy_process(job_snapshots.BACKWARD, 3), 2: LOCKED}, others=backward
    )
    assert analyse_hang(works.snapshots()) is None


def test_a_loop_that_does_not_end_is_where_it_began() -> None:
    lines = [
        ProcessState(
            (*LOOP, f"spin util.py:{9 + at % 2}"), cpu=at, active=True, gil=True, syscall=None
        )
        for at in range(4)
    ]
    job = snapshot_series({3: lines})
    job.count = 4
    hang = analyse_hang(job.snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [3])
    assert hang is not None
    assert hang.culprits[0].looping
    assert hang.seconds == 3.0


IN_A_LIBRARY = ("clean util.py:9", "match re/__init__.py:166")


def working(*calls: str, gil: bool = True) -> list[ProcessState]:
    seen = busy_process((*LOOP, *calls), 3, step=1.0, active=True, gil=gil)
    return [replace(each, syscall=None) for each in seen]


@pytest.mark.parametrize("gil", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_works_while_no_other_has_run_for_long_is_behind(ranks: int, gil: bool) -> None:
    waits = [ProcessState(collective(), rested=12.0)]
    job = snapshot_series({1: working(*IN_A_LIBRARY, gil=gil)}, others=waits, ranks=ranks)
    hang = analyse_hang(job.snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert hang.culprits[0].computing
    assert hang.seconds == 12.0
    assert [state.rank for state in hang.waiting] == [n for n in range(ranks) if n != 1]


@pytest.mark.parametrize(
    ("seen", "others"),
    [
        pytest.param(
            working(*IN_A_LIBRARY), ProcessState(collective(), rested=5.0), id="not for long"
        ),
        pytest.param(
            [
                replace(each, calls=(*LOOP, f"step train.py:{at}", *IN_A_LIBRARY))
                for at, each in enumerate(working())
            ],
            ProcessState(collective(), rested=12.0),
            id="in other calls",
        ),
        pytest.param(
            working(*IN_A_LIBRARY, gil=False),
            ProcessState((*LOOP, "synchronize torch/cuda/__init__.py:800"), rested=12.0),
            id="all may wait for their GPUs",
        ),
        pytest.param(
            working(*IN_A_LIBRARY),
            ProcessState(job_snapshots.JOINING, rested=12.0),
            id="the others join",
        ),
    ],
)
def test_a_rank_that_works_is_not_always_behind(
    seen: Sequence[ProcessState], others: ProcessState
) -> None:
    hang = analyse_hang(snapshot_series({1: seen}, others=[others]).snapshots())
    assert hang is None or not any(progress.computing for progress in hang.culprits)


ASYNCHRONOUS = (*LOOP, "Job.exchange train.py:66")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_wait_for_an_asynchronous_collective_beside_a_rank_that_works(ranks: int) -> None:
    """The wait leaves no frame of torch: reading the C functions, which makes the rank run, shows
    it. A lock of its own is none."""
    before = [ProcessState(ASYNCHRONOUS, rested=rested) for rested in (12.0, 13.0)]
    works = {1: working(*IN_A_LIBRARY)}
    first = snapshot_series(works, others=before, ranks=ranks)
    assert analyse_hang(first.snapshots()[:2]) is None
    assert analyse_hang(first.snapshots()) is None
    assert list_unclear_processes(first.snapshots()) == (1000,)
    for native, culprits in (("c10d::Work::wait", [1]), ("PyThread_acquire_lock_timed", None)):
        last = ProcessState(ASYNCHRONOUS, rested=0.1, native=(native,))
        hang = analyse_hang(snapshot_series(works, others=[*before, last], ranks=ranks).snapshots())
        finding = kind_and_culprits(hang)
        assert (None if finding is None else finding[1]) == culprits
    recent = snapshot_series(works, others=[ProcessState(ASYNCHRONOUS, rested=5.0)], ranks=ranks)
    assert list_unclear_processes(recent.snapshots()) == ()


def test_only_a_doubtful_culprit_is_worth_a_pause() -> None:
    assert list_unclear_processes(snapshot_series({1: LOCKED}).snapshots()) == (1001,)
    certain = blocked_process("f util.py:3", "Condition.wait threading.py:327")
    assert list_unclear_processes(snapshot_series({1: certain}).snapshots()) == ()
    assert list_unclear_processes(snapshot_series({}).snapshots()) == ()
    known = blocked_process("f util.py:3", syscall="flock /x, locked by itself")
    assert list_unclear_processes(snapshot_series({1: known}).snapshots()) == ()


def test_not_every_look_reads_the_workers_stacks() -> None:
    job = snapshot_series({1: [ProcessState(job_snapshots.LOADING, syscall="poll")]}, ranks=2)
    calls = (*job_snapshots.FETCHING, "get data.py:9", "take util.py:31")
    job.workers = {1: [ProcessState(calls, unread=True), ProcessState(calls)]}
    hang = analyse_hang(job.snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert hang.culprits[0].state.point.pid == 5001
    assert hang.seconds == 2.0


def test_a_wait_that_leaves_no_frame_of_torchs_is_one_where_another_is_seen_elsewhere() -> None:
    waits = [ProcessState((*LOOP, "exchange train.py:66"))]
    sleeps = blocked_process("f util.py:3", syscall="clock_nanosleep")
    assert kind_and_culprits(
        analyse_hang(snapshot_series({1: sleeps}, others=waits).snapshots())
    ) == (
        Kind.BEHIND,
        [1],
    )
    locks = blocked_process("f util.py:3", native=("PyThread_acquire_lock_timed",))
    assert kind_and_culprits(
        analyse_hang(snapshot_series({1: locks}, others=waits).snapshots())
    ) == (
        Kind.BEHIND,
        [1],
    )
    unknown = analyse_hang(snapshot_series({1: LOCKED}, others=waits).snapshots())
    assert unknown is not None
    assert unknown.waiting == ()
    assert len(list_unclear_processes(snapshot_series({1: LOCKED}, others=waits).snapshots())) == 2


def test_native_frames_of_the_last_look_explain_the_earlier_ones() -> None:
    calls = (*LOOP, "f util.py:3")
    waits = [
        ProcessState(calls),
        ProcessState(calls),
        ProcessState(calls, native=("c10d::Work::wait",)),
    ]
    assert kind_and_culprits(analyse_hang(snapshot_series({1: waits}).snapshots())) == (
        Kind.APART,
        [],
    )
    locks = [
        ProcessState(calls),
        ProcessState(calls),
        ProcessState(calls, native=("PyThread_acquire_lock_timed",)),
    ]
    hang = analyse_hang(snapshot_series({1: locks}).snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [1])
    assert hang is not None
    assert hang.culprits[0].state.certain


def test_a_rank_that_stands_is_examined_also_where_the_others_have_ended() -> None:
    stuck = ProcessState((*LOOP, "f util.py:3"), syscall="pause", gil=True)
    seen = {0: [stuck] * 3, 1: [ProcessState(state=None)] * 3}
    hang = analyse_hang(snapshot_series(seen, ranks=2).snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [0])
    assert hang is not None
    assert hang.waiting == ()


def test_what_may_be_a_lock_of_the_users_is_no_wait_for_a_rank_that_has_ended() -> None:
    """The C functions show which. Without them no rank is named."""
    dead = {1: [ProcessState(state="Z")] * 3}
    looked = snapshot_series(dead, others=[ProcessState(ASYNCHRONOUS)], ranks=2)
    assert kind_and_culprits(analyse_hang(looked.snapshots())) == (Kind.TOGETHER, [])
    assert list_unclear_processes(looked.snapshots()) == (1000,)
    for native, named in (
        ("c10d::Work::wait", (Kind.ABSENT, [1])),
        ("PyThread_acquire_lock_timed", (Kind.BEHIND, [0])),
    ):
        read = [*[ProcessState(ASYNCHRONOUS)] * 2, ProcessState(ASYNCHRONOUS, native=(native,))]
        hang = analyse_hang(snapshot_series(dead, others=read, ranks=2).snapshots())
        assert kind_and_culprits(hang) == named


STUCK: dict[str, tuple[ProcessState, Doing]] = {
    "lock": (ProcessState((*LOOP, "f util.py:3")), Doing.LOCK),
    "sleep": (ProcessState((*LOOP, "f util.py:3"), syscall="clock_nanosleep"), Doing.SLEEPING),
    "gil": (ProcessState((*LOOP, "f util.py:3"), syscall="pause", gil=True), Doing.NATIVE),
    "read": (ProcessState((*LOOP, "f util.py:3"), syscall="read pipe:[1]"), Doing.IO),
    "child": (ProcessState((*LOOP, "f util.py:3", "wait subprocess.py:9")), Doing.CHILD),
    "saving": (ProcessState(job_snapshots.SAVING, syscall="write /x"), Doing.CHECKPOINT),
}
WAITING = (collective(), job_snapshots.BACKWARD, collective("recv", 52), collective("barrier", 66))


@settings(max_examples=at_most(60), deadline=None)
@given(
    ranks=st.integers(2, 40),
    chosen=st.sets(st.integers(0, 39), min_size=1, max_size=3),
    how=st.sampled_from(sorted(STUCK)),
    where=st.lists(st.sampled_from(WAITING), min_size=40, max_size=40),
)
def test_whoever_stands_and_does_not_wait_is_named(
    ranks: int, chosen: set[int], how: str, where: list[tuple[str, ...]]
) -> None:
    culprits = {rank % ranks for rank in chosen}
    if len(culprits) == ranks:
        culprits.pop()
    seen, doing = STUCK[how]
    job = SnapshotSeries(
        {r: [seen] if r in culprits else [ProcessState(where[r])] for r in range(ranks)}
    )
    hang = analyse_hang(job.snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, sorted(culprits))
    assert hang is not None
    assert {culprit.state.doing for culprit in hang.culprits} == {doing}


POSES = (
    collective(),
    job_snapshots.BACKWARD,
    (*LOOP, "forward model.py:4"),
    (*LOOP, "f util.py:3"),
    job_snapshots.LOADING,
    job_snapshots.SAVING,
)


@settings(max_examples=at_most(80), deadline=None)
@given(
    poses=st.lists(
        st.lists(st.sampled_from(POSES), min_size=5, max_size=5), min_size=2, max_size=12
    ),
    used=st.floats(0.005, 0.6),
)
def test_a_job_of_which_every_rank_uses_time_is_never_said_to_stand(
    poses: list[list[tuple[str, ...]]], used: float
) -> None:
    ranks = {
        rank: [ProcessState(pose, cpu=at * used, active=None) for at, pose in enumerate(seen)]
        for rank, seen in enumerate(poses)
    }
    assert analyse_hang(SnapshotSeries(ranks, count=5).snapshots()) is None


def test_a_thousand_ranks() -> None:
    hang = analyse_hang(snapshot_series({417: LOCKED}, ranks=1000).snapshots())
    assert kind_and_culprits(hang) == (Kind.BEHIND, [417])
