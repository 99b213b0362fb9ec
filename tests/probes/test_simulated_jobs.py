"""What the probe records of jobs on simulated GPUs, and which rank the doctor names, against the
truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from mgpu_probes.inprocess import device_clock, layout
from mgpu_probes.inprocess.device_clock import MOST_EVENTS
from mgpu_probes.inprocess.step_marks import Data, Mark

from tests.support.simulated_gpus.probed_jobs import ProbedRank, accused, case_of, train
from tests.support.simulated_gpus.training_scripts import LATE, STRATEGIES, Job, script
from tests.support.simulated_gpus.virtual_gpus import MS, RESOLUTION_NS, Machine

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""A job takes up to a second to simulate: to look for a simpler one that fails takes too long."""
ANY, STALLED, REPEATED = 360, 100, 40
"""Random jobs in the slow suite, 500 in all: of any kind, with a loader that stalls unseen by the
device, and with each of two run-aheads. The quick suite has a few jobs of each kind."""


def many(jobs: int) -> settings:
    return settings(max_examples=jobs, phases=NO_SHRINKING)


COMPARABLE = ("ddp", "accumulating", "plain", "by_hand", "fsdp", "tensor")
"""Ranks do the same work and wait for each other in every turn."""
STEP = 80 * MS
"""About the turn of a `Job`."""
LIMITS = (0, 1, 7, 60, 300, 1_024)


def possible(job: Job) -> Job:
    """The same job, with a loader where it needs one: validation has one too, which feeds training
    where that has none."""
    needs_loader = job.strategy == "pipeline" or job.evaluates_every
    return replace(job, has_loader=True) if needs_loader else job


def jobs(*strategies: str, turns: int = 40) -> st.SearchStrategy[Job]:
    """Random jobs without a fault."""
    return st.builds(
        Job,
        strategy=st.sampled_from(strategies or tuple(STRATEGIES)),
        ranks=st.integers(2, 4),
        turns=st.just(turns),
        forward=st.integers(5, 40).map(lambda ms: ms * MS),
        backward=st.integers(10, 60).map(lambda ms: ms * MS),
        optimizer=st.integers(1, 15).map(lambda ms: ms * MS),
        input=st.integers(0, 30).map(lambda ms: ms * MS),
        transfer=st.integers(0, 12).map(lambda ms: ms * MS),
        copies=st.integers(0, 8).map(lambda ms: ms * MS),
        kernels=st.integers(1, 6),
        layers=st.integers(1, 4),
        micro_batches=st.integers(1, 3),
        period=st.integers(2, 6),
        noise=st.sampled_from((0.0, 0.03)),
        seed=st.integers(0, 10**6),
        reads_loss=st.booleans(),
        evaluates_every=st.sampled_from((0, 0, 9)),
        saves_every=st.sampled_from((0, 0, 11)),
        has_all_marks=st.booleans(),
        has_loader=st.booleans(),
    ).map(possible)


def small(strategy: str, **changes: object) -> Job:
    """A job that takes little time to simulate."""
    micro_batches = 2 if strategy in ("accumulating", "pipeline") else 1
    return replace(
        Job(strategy, ranks=3, turns=40, kernels=4, layers=2, micro_batches=micro_batches),
        **changes,  # type: ignore[arg-type]
    )


def slow(job: Job, rank: int, phase: int, share: float) -> Job:
    """The same job with a rank that takes longer in a phase, by a share of the turn."""
    return replace(job, slow={rank: {phase: int(STEP * share)}})


def check_phases(ranks: list[ProbedRank], job: Job) -> None:
    """They add up to the device's wall time, and each is the device's own to within the resolution
    of the events at its ends."""
    spans = 4 * job.layers * job.micro_batches + 8
    for rank in ranks:
        assert rank.device_steps
        assert rank.timer.dropped <= (6 if job.strategy in LATE else 1)  # the open one at the end
        for step, truth in rank.compared():
            assert sum(step.phases) == step.wall
            assert abs(step.wall - truth.wall) <= RESOLUTION_NS * spans
            for phase, real in zip(step.phases, truth.phases, strict=True):
                assert abs(phase - real) <= RESOLUTION_NS * spans


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_phases_are_those_of_the_device(strategy: str) -> None:
    job = small(strategy, turns=16, noise=0.03, evaluates_every=7, saves_every=9, copies=3 * MS)
    check_phases(train(job, run_ahead=100), job)


@pytest.mark.parametrize("strategy", LATE)
def test_a_loop_without_a_loader_and_without_a_module_is_timed(strategy: str) -> None:
    """All its turns but the first ones, in which the engine gets to know the loop. On rank 0 a
    checkpoint is part of the turn that begins before it."""
    job = small(strategy, has_loader=False, noise=0.03, saves_every=9)
    ranks = train(job, run_ahead=100)
    check_phases(ranks, job)
    for rank in ranks:
        timed = {step.record for step in rank.device_steps}
        assert set(range(7, len(rank.host_steps) + 1)) <= timed
        assert rank.gpu.used <= 1, "all events but that of the offset are given back"
        assert any(step.phases[layout.CHECKPOINT] for step in rank.device_steps) == (
            rank is ranks[0]
        )


def test_copies_of_the_batch_are_transfer() -> None:
    job = slow(small("ddp", copies=4 * MS), 1, layout.TRANSFER, 0.1)
    innocent, copying, _ = train(job, run_ahead=100)
    for rank, milliseconds in ((innocent, 4), (copying, 12)):
        seen = sorted(rank.device_steps)[-1].phases[layout.TRANSFER]
        assert seen == pytest.approx(milliseconds * MS, abs=2 * RESOLUTION_NS)


def test_a_wait_that_no_hook_sees_counts_as_own_work_of_every_rank() -> None:
    """FSDP2's compute stream waits for weights without a call that Python makes."""
    job = slow(small("fsdp", has_all_marks=False), 1, layout.FORWARD, 0.2)
    ranks = train(job, run_ahead=100)
    check_phases(ranks, job)
    for rank in ranks:
        step, truth = rank.compared()[-1]
        assert step.phases[layout.WAIT] < 0.01 * MS
        assert (truth.blocked > 10 * MS) == (rank is not ranks[1])
    assert accused(case_of(job, ranks)) == {}


def check_culprit(job: Job, rank: int, share: float, **gpu: int) -> None:
    """The slow rank is named, or nobody where little is lost."""
    named = set(accused(case_of(job, train(job, **gpu))))
    assert named <= {rank}
    if share >= 0.1 and job.strategy in COMPARABLE and job.has_all_marks:
        assert named


@pytest.mark.parametrize(
    ("strategy", "has_loader"),
    [("ddp", True), ("plain", True), ("plain", False), ("fsdp", True), ("pipeline", True)],
)
def test_a_slow_rank_is_named(strategy: str, has_loader: bool) -> None:
    job = slow(small(strategy, turns=50, has_loader=has_loader), 1, layout.BACKWARD, 0.15)
    check_culprit(job, 1, 0.15, run_ahead=60)


def test_a_rank_whose_copies_take_longer_is_named() -> None:
    job = slow(small("ddp", turns=50, copies=2 * MS), 1, layout.TRANSFER, 0.15)
    assert accused(case_of(job, train(job, run_ahead=60))) == {1: {"straggler-compute"}}


PLANTED = st.one_of(
    st.none(),
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(
            (layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER, layout.INPUT, layout.TRANSFER)
        ),
        st.floats(0.05, 0.5),
    ),
)
"""Who is slow in which phase, by which share of a turn; None: a healthy job."""


@pytest.mark.slow
@many(ANY)
@given(jobs(turns=60), PLANTED, st.sampled_from(LIMITS))
def test_in_any_job_phases_are_true_and_the_slow_rank_is_named_or_nobody(
    job: Job, planted: tuple[int, int, float] | None, run_ahead: int
) -> None:
    assume(planted is None or planted[0] < job.ranks)
    job = replace(job, noise=0.03) if planted is None else slow(job, *planted)
    ranks = train(job, run_ahead=run_ahead)
    check_phases(ranks, job)
    assert set(accused(case_of(job, ranks))) <= set(job.slow)


def check_hidden_stall(job: Job) -> None:
    """A loader that the queued work hides costs the device nothing, and its rank is not named."""
    ranks = train(job, run_ahead=1_024)
    for rank in ranks:
        for step in sorted(rank.device_steps)[10:]:
            assert step.phases[layout.INPUT] <= 0.002 * step.wall
    assert accused(case_of(job, ranks)) == {}


def test_a_stall_of_the_loader_that_is_hidden_is_not_blamed() -> None:
    check_hidden_stall(slow(small("ddp", turns=50), 1, layout.INPUT, 0.5))


@pytest.mark.slow
@many(STALLED)
@given(jobs(*COMPARABLE, turns=60), st.floats(0.05, 0.6))
def test_no_stall_of_a_loader_that_is_hidden_is_blamed(job: Job, share: float) -> None:
    device = job.forward + job.backward + job.optimizer
    job = replace(job, reads_loss=False, evaluates_every=0, saves_every=0, input=2 * MS)
    job = replace(job, has_loader=True)
    check_hidden_stall(replace(job, slow={1: {layout.INPUT: int(device * share)}}))


@pytest.mark.parametrize("prefetches", [0, 2])
def test_a_stall_of_the_loader_that_the_device_waits_for_is_named(prefetches: int) -> None:
    """With `loss.item()` in every turn nothing hides it, but a worker that makes batches in
    advance does as long as a batch takes less than a turn."""
    job = slow(small("ddp", turns=50, reads_loss=True), 1, layout.INPUT, 0.5)
    ranks = train(job, prefetches=prefetches)
    seen = sorted(ranks[1].device_steps)[-1].phases[layout.INPUT]
    assert seen < MS if prefetches else abs(seen - 42 * MS) < MS
    expected = {} if prefetches else {1: {"straggler-input"}}
    assert accused(case_of(job, ranks)) == expected


@pytest.mark.slow
@many(REPEATED)
@given(
    jobs(*COMPARABLE),
    st.sampled_from((layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER)),
    st.floats(0.2, 0.5),
    st.lists(st.sampled_from(LIMITS), min_size=2, max_size=2, unique=True),
)
def test_the_verdict_does_not_depend_on_how_far_the_host_may_run_ahead(
    job: Job, phase: int, share: float, run_aheads: list[int]
) -> None:
    """A turn has 60 operations and more, so that 1,024 are fewer than 16 turns. The loader is fast:
    a slow phase would hide a rank's own wait for data, and so cost less than it lasts."""
    job = replace(job, turns=60, kernels=24, has_all_marks=True, reads_loss=False, input=2 * MS)
    job = slow(job, 1, phase, share)
    for run_ahead in run_aheads:
        assert set(accused(case_of(job, train(job, run_ahead=run_ahead)))) == {1}


@pytest.mark.parametrize("strategy", ["ddp", "tensor"])
def test_a_healthy_job_with_noise_is_silent(strategy: str) -> None:
    job = small(strategy, turns=50, noise=0.03, seed=3)
    assert accused(case_of(job, train(job, run_ahead=60))) == {}


def check_equal_samples(job: Job, *event_ns: int) -> None:
    """A rank whose events cost more times fewer turns, all of which the others time, too."""
    ranks = train(job, *({"event_ns": cost} for cost in event_ns), run_ahead=60)
    keys = [
        {rank.host_steps[step.record - 1].before[0] for step in rank.device_steps}
        for rank in sorted(ranks, key=lambda rank: -rank.timer.interval)
    ]
    rarest = {key for key in keys[0] if key > 20 * job.layers}  # intervals are found by then
    assert rarest
    for others in keys[1:]:
        assert rarest <= others


def test_ranks_time_the_same_turns_at_different_intervals() -> None:
    job = small("ddp", ranks=2, turns=300, forward=MS, backward=2 * MS, optimizer=MS // 2)
    check_equal_samples(replace(job, input=0, transfer=MS // 5), 400, 3_000)


@pytest.mark.slow
def test_every_step_of_a_deep_model_is_timed() -> None:
    """120 blocks of FSDP2 set more than a thousand marks per step."""
    for rank in train(small("fsdp", layers=120, transfer=6 * MS)):
        assert len(rank.device_steps) >= len(rank.host_steps) - 10


@pytest.mark.parametrize(
    ("strategy", "has_loader"),
    [
        ("ddp", True),
        ("plain", False),
        pytest.param("fsdp", True, marks=pytest.mark.slow),
        pytest.param("ddp", False, marks=pytest.mark.slow),
        pytest.param("plain", True, marks=pytest.mark.slow),
        pytest.param("fsdp", False, marks=pytest.mark.slow),
    ],
)
def test_ranks_time_the_same_turns_however_far_their_hosts_are_ahead(
    strategy: str, has_loader: bool
) -> None:
    """A turn has few operations, so that some hundred turns are queued, on each rank another number
    of them; every turn is timed on every rank."""
    job = small(strategy, turns=200, kernels=1, layers=1, has_loader=has_loader)
    job = replace(slow(job, 1, layout.FORWARD, 0.1), ranks=4)
    ranks = train(job, {"run_ahead": 1_024}, {"run_ahead": 0}, {"run_ahead": 30}, run_ahead=300)
    timed = [{step.record for step in rank.device_steps} for rank in ranks]
    assert all(turns == timed[0] for turns in timed)
    assert set(range(10, 190)) <= timed[0]


def test_a_rank_without_room_for_more_events_times_fewer_of_the_same_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_clock, "MOST_EVENTS", 500)
    job = small("ddp", ranks=2, turns=400, kernels=1, layers=1)
    full, free = train(job, {"run_ahead": 1_024}, {"run_ahead": 30})
    assert full.timer.interval > 1 == free.timer.interval
    late = {step.record for step in full.device_steps if step.record > 150}
    assert late <= {step.record for step in free.device_steps}
    due = {record for record in range(151, 399) if is_due(full, record)}
    assert late == due, "it drops none by chance"


def is_due(rank: ProbedRank, record: int) -> bool:
    """Whether its interval lets a turn be timed."""
    key = rank.host_steps[record - 2].after[0]
    return device_clock.is_sampled(key, rank.timer.interval)


@pytest.mark.parametrize("strategy", ["plain", "by_hand", "tensor", "ddp"])
@pytest.mark.parametrize("has_loader", [True, False])
def test_marks_of_the_same_turn_have_the_same_numbers_on_all_ranks(
    strategy: str, has_loader: bool
) -> None:
    """How far devices got is compared by them, whichever turns each rank times."""
    job = small(strategy, has_loader=has_loader)
    machine = Machine(job.ranks)
    known: list[list[tuple[int, int, int] | None]] = []
    for rank, interval in zip(map(ProbedRank, machine.gpus), (1, 2, 4), strict=True):
        rank.timer.interval = interval
        rank.engine.engine().optimizers_exist = strategy != "by_hand"
        known.append([])
        rank.gpu.mark = numbered(rank, known[-1])
    machine.run([script(job, rank) for rank in range(job.ranks)])
    compared = 0
    for first, second, third in zip(*known, strict=True):
        for one, other in ((first, second), (second, third), (first, third)):
            if one is not None and other is not None and one[0] == other[0]:
                assert one == other
                compared += 1
    assert compared > 50


def numbered(
    rank: ProbedRank, numbers: list[tuple[int, int, int] | None]
) -> Callable[[Mark, Data], None]:
    """Sets marks, and notes after each the newest turn that is timed: its key, the steps before
    it, and its marks so far."""

    def mark(mark: Mark, data: Data) -> None:
        rank.mark(mark, data)
        tape = next(reversed(rank.timer.tapes()), None)
        is_known = tape is not None and rank.timer.is_open(tape)
        numbers.append((tape.key, tape.step, len(tape.marks)) if tape and is_known else None)

    return mark


@pytest.mark.parametrize("most_events", [0, 9])
def test_running_out_of_events_blocks_nothing(most_events: int) -> None:
    """The job runs on as without a timer."""
    job = small("ddp")
    for rank, free in zip(train(job, most_events=most_events), train(job), strict=True):
        assert rank.gpu.host == free.gpu.host
        assert rank.gpu.used <= most_events
        for step, truth in rank.compared():
            assert abs(step.wall - truth.wall) <= 4 * RESOLUTION_NS


def test_many_turns_in_flight_block_nothing() -> None:
    job = small("single", kernels=1, layers=1, ranks=1, turns=400)
    (rank,) = train(job, run_ahead=1_024)
    assert rank.gpu.used <= MOST_EVENTS
    assert rank.timer.dropped <= 1  # the open one at the end
    assert len(rank.device_steps) >= 395
