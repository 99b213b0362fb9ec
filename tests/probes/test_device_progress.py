"""How far simulated devices got when their hosts stand still, and which rank that shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.device_progress import DeviceWatch

from mgpu_doctor.analysis.stacks.device_positions import find_device_behind
from mgpu_doctor.case.box_ranks import position_of
from mgpu_doctor.case.model import DevicePosition, State
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.recording.box import STEP_DTYPE, read_box
from mgpu_doctor.recording.device_position import NoPosition
from tests.support import job_snapshots
from tests.support.diagnoses import facts
from tests.support.diagnoses import rank as summary
from tests.support.simulated_gpus.probed_jobs import ProbedRank
from tests.support.simulated_gpus.training_scripts import STRATEGIES, Job, script
from tests.support.simulated_gpus.virtual_gpus import (
    COMMUNICATION,
    HOME,
    MS,
    Instruction,
    Kernel,
    Machine,
    Synchronize,
    Turn,
)

FOREVER = 10**15
"""ns"""
NAMES = {phase: layout.PHASES[phase] for phase in range(len(layout.PHASES))}


def stuck(job: Job, number: int, turn: int, endless: Mapping[int, Kernel]) -> Iterator[Instruction]:
    """What a rank's host does until it waits for its device in this turn. The ranks in `endless`
    queue that kernel before the first one of its phase."""
    turns, kernel = 0, endless.get(number)
    for instruction in script(job, number):
        turns += type(instruction) is Turn
        if turns > turn or (turns == turn and isinstance(instruction, Synchronize)):
            return
        if (
            turns == turn
            and kernel is not None
            and isinstance(instruction, Kernel)
            and instruction.phase == kernel.phase
        ):
            yield kernel
            kernel = None
        yield instruction


def look_at(
    job: Job,
    folder: Path,
    turn: int,
    endless: Mapping[int, Kernel],
    *,
    intervals: Sequence[int] = (1,),
    apart: int = 1_000 * MS,
) -> dict[int, DevicePosition | NoPosition]:
    """Rank -> how far its device got some seconds after all hosts came to a stop, by its box."""
    machine = Machine(job.ranks)
    ranks = [ProbedRank(gpu) for gpu in machine.gpus]
    boxes, watches = [], []
    for number, rank in enumerate(ranks):
        box = Writer.open(folder / str(number), rank=number, world_size=job.ranks)
        rank.engine.ledger.words = box.words
        rank.timer.interval = intervals[number % len(intervals)]
        boxes.append(box)
        watches.append(DeviceWatch(rank.timer, rank.gpu.clock))
    machine.run([stuck(job, number, turn, endless) for number in range(job.ranks)])
    seen = {}
    for number, (rank, box, watch) in enumerate(zip(ranks, boxes, watches, strict=True)):
        rank.gpu.host += 5_000 * MS
        used = rank.gpu.used
        for _ in range(3):
            watch.poll(box.words)
            rank.gpu.host += apart
        assert rank.gpu.used == used, "it may record nothing"
        seen[number] = position_of(read_box(box.path))
        box.close()
    return seen


def behind(seen: Mapping[int, DevicePosition | NoPosition]) -> int | None:
    """The rank that the positions show to be behind."""
    known = {rank: at for rank, at in seen.items() if isinstance(at, DevicePosition)}
    if len(known) < len(seen):
        return None
    return find_device_behind(known, max(at.seen for at in known.values()))


def small(strategy: str, **changes: object) -> Job:
    micro_batches = 2 if strategy in ("accumulating", "pipeline") else 1
    return replace(
        Job(strategy, ranks=3, turns=40, kernels=4, layers=2, micro_batches=micro_batches),
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("phase", [layout.FORWARD, layout.BACKWARD])
@pytest.mark.parametrize("strategy", ["ddp", "plain", "fsdp", "tensor", "accumulating"])
def test_the_rank_whose_device_does_not_go_on_is_behind(
    tmp_path: Path, strategy: str, phase: int
) -> None:
    seen = look_at(small(strategy), tmp_path, 12, {1: Kernel(FOREVER, phase)})
    assert behind(seen) == 1
    for rank, position in seen.items():
        assert isinstance(position, DevicePosition)
        assert position.phase == (NAMES[phase] if rank == 1 else "wait")
        assert (position.step, position.has_more) == (11, True)
        assert position.seen - position.since == pytest.approx(1.0)


def test_the_diagnosis_names_it(tmp_path: Path) -> None:
    """All hosts wait in `loss.item()`, which leaves no frame."""
    endless = {2: Kernel(FOREVER, layout.BACKWARD)}
    seen = look_at(small("fsdp"), tmp_path, 12, endless, apart=40_000 * MS)
    job = job_snapshots.snapshot_series(
        {}, ranks=3, others=[job_snapshots.ProcessState(job_snapshots.LOOP)]
    )
    ranks = []
    for number, at in seen.items():
        assert isinstance(at, DevicePosition)
        later = job_snapshots.START + 2.0 - at.seen
        position = replace(at, since=at.since + later, seen=at.seen + later)
        known = facts(summary(number, state=State.RUNNING, exit_code=None))
        steps = np.empty(0, STEP_DTYPE)
        ranks.append(replace(known, pid=1000 + number, steps=steps, device_position=position))
    (finding,) = diagnose(job_snapshots.case(job.snapshots(), ranks)).findings
    assert (finding.code, finding.victims) == ("hang-rank-behind", (0, 1))
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.evidence[0].value == "still in the backward pass of step 11"


def test_where_all_devices_wait_for_others_nobody_is_behind(tmp_path: Path) -> None:
    """What never ends is a collective of rank 1's, or work of every rank."""
    job = small("ddp")
    seen = look_at(job, tmp_path, 12, {1: Kernel(FOREVER, layout.BACKWARD, COMMUNICATION)})
    assert {at.phase for at in seen.values() if isinstance(at, DevicePosition)} == {"wait"}
    assert behind(seen) is None


def test_of_several_devices_that_do_not_wait_nobody_is_behind(tmp_path: Path) -> None:
    """One of them may wait for the other where no mark shows it."""
    endless = Kernel(FOREVER, layout.FORWARD, HOME)
    assert behind(look_at(small("ddp"), tmp_path, 12, {0: endless, 1: endless})) is None
    everyone = dict.fromkeys(range(3), endless)
    assert behind(look_at(small("ddp"), tmp_path, 12, everyone)) is None


def test_devices_that_have_done_all_that_was_queued_are_not_behind(tmp_path: Path) -> None:
    seen = look_at(small("ddp"), tmp_path, 12, {})
    assert behind(seen) is None
    for position in seen.values():
        assert isinstance(position, DevicePosition)
        assert not position.has_more


def test_nothing_is_known_between_steps_that_the_device_times(tmp_path: Path) -> None:
    """One step in 4,096 is timed: not this one."""
    endless = {1: Kernel(FOREVER, layout.FORWARD)}
    seen = look_at(small("ddp"), tmp_path, 12, endless, intervals=[4_096])
    assert set(seen.values()) == {NoPosition.NOT_TIMED}


def test_nobody_asks_the_device_while_the_host_sets_marks(tmp_path: Path) -> None:
    gpu = Machine(1).gpus[0]
    rank = ProbedRank(gpu)
    box = Writer.open(tmp_path, rank=0, world_size=1)
    assert position_of(read_box(box.path)) is NoPosition.NO_DEVICE_CLOCK
    rank.engine.ledger.words = box.words
    watch = DeviceWatch(rank.timer, gpu.clock)
    for _ in gpu.run(stuck(small("single", ranks=1), 0, 9, {})):
        pass
    gpu.host += 5_000 * MS
    queries = gpu.queries
    for number in range(5):
        box.words[layout.NOW_SINCE // 8] = 10 + number  # as a mark does
        watch.poll(box.words)
    assert gpu.queries == queries
    assert position_of(read_box(box.path)) is NoPosition.HOST_MOVES
    watch.poll(box.words)
    assert gpu.queries > queries
    assert isinstance(position_of(read_box(box.path)), DevicePosition)
    box.words[layout.NOW_SINCE // 8] = gpu.clock() + 1
    assert position_of(read_box(box.path)) is NoPosition.HOST_MOVES, "it went on since"
    box.close()


def test_a_box_of_an_older_version_says_that_it_knows_no_position(tmp_path: Path) -> None:
    box = Writer.open(tmp_path, rank=0, world_size=1)
    box.close()
    file = Path(box.path)
    content = bytearray(file.read_bytes())
    content[10:12] = (3).to_bytes(2, "little")
    file.write_bytes(content)
    assert read_box(file).device_position is NoPosition.OLD_BOX


JOBS = st.builds(
    small,
    strategy=st.sampled_from(sorted(STRATEGIES.keys() - {"single"})),
    has_all_marks=st.booleans(),
    layers=st.integers(1, 4),
    reads_loss=st.booleans(),
    noise=st.just(0.03),
    has_loader=st.booleans(),
)


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    JOBS,
    st.tuples(st.integers(3, 14), st.integers(0, 2)),
    st.sampled_from((layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER)),
    st.tuples(st.sampled_from((HOME, COMMUNICATION)), st.permutations((1, 2, 4))),
)
def test_no_other_rank_is_behind(
    tmp_path_factory: pytest.TempPathFactory,
    job: Job,
    where: tuple[int, int],
    phase: int,
    how: tuple[int, Sequence[int]],
) -> None:
    """Whichever of the turns each rank times, and also where a turn begins unnoticed."""
    (turn, rank), (stream, intervals) = where, how
    endless = {rank: Kernel(FOREVER, phase, stream)}
    for each in ((1,), intervals):
        seen = look_at(job, tmp_path_factory.mktemp("job"), turn, endless, intervals=each)
        assert behind(seen) in {rank, None}


def test_the_rank_is_behind_where_turns_begin_unnoticed(tmp_path: Path) -> None:
    """No loader and no wrapped module: the turn is known to have begun with its backward pass."""
    job = small("plain", has_loader=False)
    seen = look_at(job, tmp_path, 12, {1: Kernel(FOREVER, layout.BACKWARD)})
    assert behind(seen) == 1
    for position in seen.values():
        assert isinstance(position, DevicePosition)
        assert position.step == 11
