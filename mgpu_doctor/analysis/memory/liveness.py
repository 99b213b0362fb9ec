"""What a graph of operations allocates and frees when it is run: each buffer lives from the
operation that makes it to the last that uses it.

As TensorFlow's executor does it: an operation runs when all that it needs is there. On GPUs those
that have become ready run in turn, first come first served (`ExecutorState::Process`: there every
operation is inexpensive, and none waits for another thread); on CPUs the costly ones go to threads,
and the order is nearer to that in which the graph was written.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream


class Use(Enum):
    """How an operation uses memory."""

    MAKES = "makes"
    """Its outputs are new buffers."""
    REUSES = "reuses"
    """The first output reuses an equally large input that no other operation needs."""
    PASSES = "passes"
    """Each output is the input of the same number, or the first."""
    READS = "reads"
    """Its output is the variable's own buffer."""
    UPDATES = "updates"
    """Changes a variable: in place, but in a copy while another operation still needs the old
    value."""
    ASSIGNS = "assigns"
    """The variable takes the buffer of the last input."""


class Order(Enum):
    """Which of the operations that are ready comes next."""

    BREADTH = "first come, first served"
    WRITTEN = "as the graph was written"


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that exists before and after the step: a variable, or a part of the batch."""

    name: str
    size: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Node:
    """An operation. `inputs`: operation and output number each; `after`: operations that must be
    over; `sizes`: bytes of each output; `held`: the variable, or the part of the batch, that it
    gives, reads or changes."""

    name: str
    use: Use
    inputs: tuple[tuple[int, int], ...]
    after: tuple[int, ...]
    sizes: tuple[int, ...]
    kind: Kind
    phase: Phase
    held: int | None = None


def build_stream(
    nodes: Sequence[Node],
    held: Sequence[Held],
    samples: int,
    parameters: int,
    order: Order = Order.BREADTH,
) -> Stream:
    """One step, optimizer states made before it. Raises ValueError for a graph with a circle."""
    run = _Run(nodes, held)
    set_up = len(run.events)
    for number in _order_nodes(nodes, order):
        run.execute(number)
    return Stream(tuple(run.events), (set_up,), samples, parameters)


def _order_nodes(nodes: Sequence[Node], order: Order) -> Iterable[int]:
    needed = [len(node.inputs) + len(node.after) for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for other in (*(other for other, _ in node.inputs), *node.after):
            users[other].append(number)
    ready = [number for number, count in enumerate(needed) if not count]
    queue = deque(ready)
    put: Callable[[int], None] = queue.append
    take: Callable[[], int] = queue.popleft
    if order is Order.WRITTEN:
        put, take = (lambda number: heapq.heappush(ready, number)), (lambda: heapq.heappop(ready))
    for _ in nodes:
        try:
            number = take()
        except IndexError:
            raise ValueError("the graph has a circle") from None
        yield number
        for user in users[number]:
            needed[user] -= 1
            if not needed[user]:
                put(user)


class _Run:
    """Buffers by number; `uses`: how many still need each, the variable itself included."""

    def __init__(self, nodes: Sequence[Node], held: Sequence[Held]) -> None:
        self.events: list[Event] = []
        self._nodes, self._kept = nodes, held
        self._uses: dict[int, int] = {}
        self._size: dict[int, int] = {}
        self._of: dict[tuple[int, int], int | None] = {}
        self._users: dict[tuple[int, int], int] = {}
        for node in nodes:
            for each in node.inputs:
                self._users[each] = self._users.get(each, 0) + 1
        self._held = [self._new(each.size, each.kind, Phase.SETUP, each.name) for each in held]
        for buffer in self._held:
            self._uses[buffer] = 1

    def execute(self, number: int) -> None:
        node = self._nodes[number]
        for output in range(len(node.sizes)):
            buffer = self._output(node, output)
            self._of[number, output] = buffer
            if buffer is not None:
                self._uses[buffer] += self._users.get((number, output), 0)
        if node.held is not None and node.use in (Use.UPDATES, Use.ASSIGNS):
            self._change(node, node.held)
        for each in node.inputs:
            self._used(self._of.get(each), node.phase)
        for output in range(len(node.sizes)):
            self._let_go(self._of[number, output], node.phase)

    def _output(self, node: Node, output: int) -> int | None:
        if node.held is not None:
            return self._held[node.held] if node.use is Use.READS else None
        size = node.sizes[output]
        if node.use is Use.PASSES and node.inputs:
            return self._of.get(node.inputs[min(output, len(node.inputs) - 1)])
        if not size:
            return None
        if node.use is Use.REUSES and not output:
            for each in node.inputs:
                buffer = self._of.get(each)
                if buffer is not None and self._uses[buffer] == 1 and self._size[buffer] == size:
                    return buffer
        return self._new(size, node.kind, node.phase, node.name)

    def _change(self, node: Node, held: int) -> None:
        now = self._held[held]
        if node.use is Use.ASSIGNS:
            value = self._of.get(node.inputs[-1]) if node.inputs else None
            if value is None or value == now:
                return
            self._held[held] = value
        elif self._uses[now] > 1:
            kept = self._kept[held]
            self._held[held] = self._new(kept.size, kept.kind, node.phase, node.name)
        else:
            return
        self._uses[self._held[held]] += 1
        self._used(now, node.phase)

    def _new(self, size: int, kind: Kind, phase: Phase, name: str) -> int:
        buffer = len(self._size)
        self._size[buffer], self._uses[buffer] = size, 0
        self.events.append(Allocated(buffer, size, kind, phase, name))
        return buffer

    def _used(self, buffer: int | None, phase: Phase) -> None:
        if buffer is not None:
            self._uses[buffer] -= 1
            self._let_go(buffer, phase)

    def _let_go(self, buffer: int | None, phase: Phase) -> None:
        if buffer is not None and self._uses.get(buffer) == 0:
            del self._uses[buffer]
            self.events.append(Freed(buffer, phase))
