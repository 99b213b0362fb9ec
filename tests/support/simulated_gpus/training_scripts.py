"""Training loops as scripts for simulated GPUs, with the marks that the probe's hooks set on them.

Where today's hooks miss a wait on a device (docs/gpu.md), `Job.has_all_marks` sets the marks that
are to come: around waits of FSDP2, and around collectives that autograd's device thread calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import nan
from random import Random

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_marks import (
    backward_ended,
    batch_copied,
    evaluation_fetch_begins,
    evaluation_forward_begins,
    evaluation_forward_ends,
    fetched,
    pause_begins,
    pause_ends,
)

from tests.support.simulated_gpus.virtual_gpus import (
    COMMUNICATION,
    COPY,
    HOME,
    MS,
    Fetch,
    Instruction,
    Join,
    Kernel,
    Mark,
    Meet,
    Synchronize,
    Turn,
    Work,
)

INPUT, TRANSFER, FORWARD, BACKWARD, WAIT, OPTIMIZER, OTHER = (
    layout.INPUT,
    layout.TRANSFER,
    layout.FORWARD,
    layout.BACKWARD,
    layout.WAIT,
    layout.OPTIMIZER,
    layout.OTHER,
)
Script = Iterator[Instruction]


@dataclass(frozen=True)
class Job:
    """A training job. Durations are of one turn, in ns, before noise."""

    strategy: str = "ddp"
    ranks: int = 4
    turns: int = 40
    forward: int = 25 * MS
    backward: int = 45 * MS
    optimizer: int = 10 * MS
    input: int = 2 * MS
    """To make a batch."""
    transfer: int = 2 * MS
    """Of all collectives of a turn."""
    kernels: int = 24
    """Of forward, of backward, and of the optimizer."""
    layers: int = 4
    """Or buckets of gradients."""
    micro_batches: int = 1
    period: int = 4
    """Turns between two averages of the weights under local SGD."""
    noise: float = 0.0
    """Coefficient of variation of each phase of each turn and rank."""
    seed: int = 0
    slow: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Rank -> phase -> additional ns in every turn."""
    slow_from: int = 0
    has_loader: bool = True
    """Without one the script makes its batches on the device: what is no wrapped module then begins
    its turn with a backward pass."""
    copies: int = 0
    """Copying the batch, in the stream that computes; 0: in another stream, and unseen."""
    reads_loss: bool = False
    """`loss.item()` in every turn."""
    evaluates_every: int = 0
    saves_every: int = 0
    """Turns between two checkpoints, on rank 0."""
    has_all_marks: bool = True


class Marks:
    """Those of one rank: an optimizer and a loader have marks of their own."""

    def __init__(self, rank: int) -> None:
        def asked(steps: Steps, now: int) -> None:
            steps.fetch_begins(7 + rank, now)

        def updated(steps: Steps, now: int) -> None:
            steps.update_ends(now, 3)

        def called(steps: Steps, now: int) -> None:
            steps.call_ends(now, ("train.py", 12, "all_reduce"))

        def waited(steps: Steps, now: int) -> None:
            steps.call_ends(now)

        def sends(steps: Steps, now: int) -> None:
            steps.call_begins(now, sends=True)

        self.asked = Mark(asked, INPUT)
        self.fetched = Mark(fetched, OTHER, (8, 0))
        self.forward_begins = Mark(Steps.forward_begins, FORWARD)
        self.forward_ends = Mark(Steps.forward_ends, FORWARD)
        self.backward_begins = Mark(Steps.backward_begins, BACKWARD)
        self.backward_waits = Mark(Steps.backward_waits, WAIT)
        self.backward_ends = Mark(backward_ended, OTHER, (nan,))
        self.update_begins = Mark(Steps.update_begins, OPTIMIZER)
        self.updated = Mark(updated, OTHER)
        self.updated_at_end = Mark(updated, FORWARD)
        self.copied = Mark(batch_copied, TRANSFER)
        self.calls = Mark(Steps.call_begins, WAIT)
        self.sends = Mark(sends, WAIT)
        self.called = called
        self.waited = waited


class Rank:
    """What one rank does, in parts that strategies put together."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.everyone = tuple(range(job.ranks))
        self.marks = Marks(number)
        self.turn = 0
        self.begins_late = not job.has_loader and job.strategy in LATE
        """No mark shows when a turn begins: it is where the last one ended."""
        self.between = FORWARD if self.begins_late else OTHER
        """What the host does between two turns."""
        self._has_begun = False
        self._random = Random(job.seed * 1009 + number)

    def takes(self, phase: int, usual: int) -> int:
        """How long it takes in this turn."""
        sigma = self.job.noise
        factor = self._random.gauss(1, sigma) if sigma else 1.0
        more = self.job.slow.get(self.number, {}).get(phase, 0)
        return round(usual * max(0.2, factor)) + more * (self.turn >= self.job.slow_from)

    def begins(self, *, has_module: bool = True) -> Script:
        """A turn begins with a batch from the loader, which is copied to the device."""
        marks = self.marks
        if not self._has_begun:
            yield Turn()
        self._has_begun = False
        if not self.job.has_loader:
            return
        yield marks.asked
        yield Fetch(self.takes(INPUT, self.job.input))
        copies = has_module and self.job.copies > 0
        phase = TRANSFER if copies else OTHER if has_module else FORWARD
        yield Mark(fetched, phase, (8, 0))
        if copies:
            yield Kernel(self.takes(TRANSFER, self.job.copies), TRANSFER)
            yield marks.copied
            return
        yield Kernel(MS // 5, phase, COPY)
        yield Join(COPY, phase)

    def ends(self) -> Script:
        """The next turn begins now."""
        yield Turn()
        self._has_begun = True

    def ends_late(self) -> Script:
        """It does where no mark shows it. A host takes some time before it sets the next mark."""
        if self.begins_late:
            yield from self.ends()
            yield Work(1_000)

    def kernels(self, phase: int, duration: int, count: int) -> Script:
        """Work of a phase in so many operations."""
        part = Kernel(duration // count, phase)
        for _ in range(count):
            yield part

    def layers(self, phase: int, usual: int) -> list[Script]:
        """The work of a phase, layer by layer."""
        job = self.job
        duration = self.takes(phase, usual)
        count = max(1, job.kernels // job.layers)
        return [self.kernels(phase, duration // job.layers, count) for _ in range(job.layers)]

    def forward(self, work: Script | None = None) -> Script:
        """A wrapped module is called."""
        yield self.marks.forward_begins
        yield from work or chain(*self.layers(FORWARD, self.job.forward))
        yield self.marks.forward_ends

    def backward(self, usual: int | None = None) -> Script:
        """A backward pass that waits for nobody."""
        yield self.marks.backward_begins
        yield from chain(*self.layers(BACKWARD, self.job.backward if usual is None else usual))
        yield self.marks.backward_ends

    def backward_of_ddp(self, usual: int) -> Script:
        """Each bucket of gradients is reduced while the pass goes on; at its end the rank waits."""
        yield self.marks.backward_begins
        for layer in self.layers(BACKWARD, usual):
            yield from layer
            yield Meet(self.everyone, self.job.transfer // self.job.layers)
        yield self.marks.backward_waits
        yield Join(COMMUNICATION)
        yield self.marks.backward_ends

    def update(self, *, after: Script | None = None) -> Script:
        """The optimizer's step, and what a loop does after it."""
        job = self.job
        yield self.marks.update_begins
        yield from self.kernels(OPTIMIZER, self.takes(OPTIMIZER, job.optimizer), job.kernels)
        yield self.marks.updated_at_end if self.begins_late else self.marks.updated
        yield from self.ends_late()
        yield from after or ()
        yield from self.turned()

    def turned(self) -> Script:
        """What a loop does after its update."""
        job = self.job
        self.turn += 1
        if (
            job.reads_loss or self.turn == job.turns - 1
        ):  # else the last turns would complete unseen
            yield Synchronize()
        if job.saves_every and self.turn % job.saves_every == 0 and self.number == 0:
            yield Mark(pause_begins, layout.CHECKPOINT, (layout.CHECKPOINT,))
            yield Synchronize()
            yield Work(30 * MS)
            yield Mark(pause_ends, self.between)
        if job.evaluates_every and self.turn % job.evaluates_every == 0:
            yield from self.evaluation()

    def evaluation(self) -> Script:
        """Three batches of another loader, without gradients: the next turn begins with them."""
        yield from self.ends()
        for _ in range(3):
            yield Mark(evaluation_fetch_begins, layout.EVALUATION, (99,))
            yield Work(MS // 2)
            yield Mark(fetched, layout.EVALUATION, (8, 0))
            yield Mark(evaluation_forward_begins, layout.EVALUATION)
            yield from self.kernels(layout.EVALUATION, self.job.forward, self.job.kernels)
            yield Mark(evaluation_forward_ends, layout.EVALUATION)

    def call(self, *instructions: Instruction, after: int, seen: bool = True) -> Script:
        """A collective that Python calls, with the marks around it if its hook takes them."""
        if seen:
            yield self.marks.calls
        yield from instructions
        if seen:
            yield Mark(self.marks.called, after)

    def wait(self, *instructions: Instruction, after: int, seen: bool = True) -> Script:
        """A wait for an earlier call."""
        if seen:
            yield self.marks.calls
        yield from instructions
        if seen:
            yield Mark(self.marks.waited, after)


def single(rank: Rank) -> Script:
    """One GPU, one process."""
    for _ in range(rank.job.turns):
        yield from rank.begins(has_module=False)
        yield from chain(*rank.layers(FORWARD, rank.job.forward))
        yield from rank.backward()
        yield from rank.update()


def ddp(rank: Rank) -> Script:
    """DistributedDataParallel."""
    for _ in range(rank.job.turns):
        yield from rank.begins()
        yield from rank.forward()
        yield from rank.backward_of_ddp(rank.job.backward)
        yield from rank.update()


def accumulating(rank: Rank) -> Script:
    """DistributedDataParallel with gradient accumulation under `no_sync`."""
    job = rank.job
    for _ in range(job.turns):
        for micro_batch in reversed(range(job.micro_batches)):
            parts = rank.begins()
            if micro_batch < job.micro_batches - 1:
                parts = (part for part in parts if type(part) is not Turn)
            yield from parts
            yield from rank.forward()
            if micro_batch:
                yield from rank.backward(job.backward)
            else:
                yield from rank.backward_of_ddp(job.backward)
        yield from rank.update()


def plain(rank: Rank) -> Script:
    """Gradients are averaged by hand after the backward pass."""
    job = rank.job
    for _ in range(job.turns):
        yield from rank.begins(has_module=False)
        yield from chain(*rank.layers(FORWARD, job.forward))
        yield from rank.backward()
        for _ in range(job.layers):
            meet = Meet(rank.everyone, job.transfer // job.layers, HOME)
            yield from rank.call(meet, after=OTHER)
        yield from rank.update()


def local_sgd(rank: Rank) -> Script:
    """Ranks learn by themselves and average their weights from time to time."""
    job = rank.job

    def average() -> Script:
        if (rank.turn + 1) % job.period == 0:
            meet = Meet(rank.everyone, job.transfer, HOME)
            yield from rank.call(meet, after=rank.between)

    for _ in range(job.turns):
        yield from rank.begins(has_module=False)
        yield from chain(*rank.layers(FORWARD, job.forward))
        yield from rank.backward()
        yield from rank.update(after=average())


def by_hand(rank: Rank) -> Script:
    """Without an optimizer: gradients are averaged and the weights changed by hand. The turn ends
    with the last average; the update counts as the forward pass after it."""
    job = rank.job
    for _ in range(job.turns):
        yield from rank.begins(has_module=False)
        yield from rank.kernels(FORWARD, rank.takes(OPTIMIZER, job.optimizer), job.kernels)
        yield from chain(*rank.layers(FORWARD, job.forward))
        yield from rank.backward()
        for layer in range(job.layers):
            meet = Meet(rank.everyone, job.transfer // job.layers, HOME)
            ends = rank.begins_late and layer == job.layers - 1
            yield from rank.call(meet, after=rank.between if ends else OTHER)
        yield from rank.ends_late()
        yield from rank.turned()


def fsdp(rank: Rank) -> Script:
    """FSDP2: the weights of each layer are gathered before it, a layer ahead, and gradients reduced
    after it, both on streams of their own."""
    job = rank.job
    seen = job.has_all_marks
    part = job.transfer // (3 * job.layers)

    def gathered(phase: int, work: list[Script]) -> Script:
        """A layer's weights are gathered while the layer before it is computed."""
        meet = Meet(rank.everyone, part, COMMUNICATION)
        yield from rank.call(meet, after=phase, seen=seen or phase == FORWARD)
        for number, layer in enumerate(work):
            join = Join(COMMUNICATION, WAIT if seen else phase)
            yield from rank.wait(join, after=phase, seen=seen)
            if number < len(work) - 1:
                yield from rank.call(meet, after=phase, seen=seen or phase == FORWARD)
            yield from layer
            if phase == BACKWARD:
                yield from rank.call(meet, after=phase, seen=seen)

    for _ in range(job.turns):
        yield from rank.begins()
        yield from rank.forward(gathered(FORWARD, rank.layers(FORWARD, job.forward)))
        yield rank.marks.backward_begins
        yield from gathered(BACKWARD, rank.layers(BACKWARD, job.backward))
        if seen:
            yield rank.marks.backward_waits
        yield Join(COMMUNICATION, WAIT if seen else BACKWARD)
        yield rank.marks.backward_ends
        yield from rank.update()


def tensor_parallel(rank: Rank) -> Script:
    """Each layer is divided among the ranks, which add up its results in forward and backward."""
    job = rank.job
    seen = job.has_all_marks
    part = job.transfer // (2 * job.layers)

    def added_up(phase: int, work: list[Script], waits_as: int) -> Script:
        for layer in work:
            yield from layer
            yield Meet(rank.everyone, part)
            yield from rank.wait(Join(COMMUNICATION, waits_as), after=phase, seen=waits_as == WAIT)

    for _ in range(job.turns):
        yield from rank.begins(has_module=False)
        yield from added_up(FORWARD, rank.layers(FORWARD, job.forward), WAIT)
        yield rank.marks.backward_begins
        waits_as = WAIT if seen else BACKWARD
        yield from added_up(BACKWARD, rank.layers(BACKWARD, job.backward), waits_as)
        yield rank.marks.backward_ends
        yield from rank.update()


def pipeline(rank: Rank) -> Script:
    """GPipe: micro-batches go through the stages and their gradients come back. Every stage asks
    a loader, the first for inputs and the last for targets."""
    job, marks = rank.job, rank.marks
    stage, last = rank.number, job.ranks - 1
    part = job.transfer // max(1, 2 * job.micro_batches)

    def receive(source: int, after: int) -> Script:
        yield from rank.wait(Meet((source, stage), part), Join(COMMUNICATION), after=after)

    def send(target: int, after: int) -> Script:
        yield marks.sends
        yield Meet((stage, target), part)
        yield Mark(marks.called, after)

    for _ in range(job.turns):
        forwards = rank.takes(FORWARD, job.forward) // job.micro_batches
        backwards = rank.takes(BACKWARD, job.backward) // job.micro_batches
        yield from rank.begins(has_module=False)
        for _ in range(job.micro_batches):
            if stage > 0:
                yield from receive(stage - 1, FORWARD)
            yield from rank.kernels(FORWARD, forwards, 4)
            if stage < last:
                yield from send(stage + 1, FORWARD)
        for _ in range(job.micro_batches):
            if stage < last:
                yield from receive(stage + 1, OTHER)
            yield marks.backward_begins
            yield from rank.kernels(BACKWARD, backwards, 4)
            yield marks.backward_ends
            if stage > 0:
                yield from send(stage - 1, OTHER)
        yield from rank.update()


LATE = ("single", "plain", "local_sgd", "by_hand", "tensor")
"""Strategies without a wrapped module."""
STRATEGIES: Mapping[str, Callable[[Rank], Script]] = {
    "single": single,
    "ddp": ddp,
    "accumulating": accumulating,
    "plain": plain,
    "local_sgd": local_sgd,
    "by_hand": by_hand,
    "fsdp": fsdp,
    "tensor": tensor_parallel,
    "pipeline": pipeline,
}


def script(job: Job, rank: int) -> Script:
    """What this rank of the job does."""
    return STRATEGIES[job.strategy](Rank(job, rank))
