"""Hand-made training steps as allocation streams: a transformer's, and a toy's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream

LAYER = (3 * MIB, MIB, 4 * MIB, 4 * MIB)
"""Bytes of a layer's weights."""
EMBEDDING = 16 * MIB
KEPT, LOGITS = 2 * MIB + 4096, 24 * MIB
"""Bytes a sample: of one of a layer's four activations, and of the logits."""


def taking(*sizes: int) -> Stream:
    """Blocks 0, 1, … that are taken and never freed."""
    events = [Allocated(i, size, Kind.WEIGHTS, Phase.SETUP) for i, size in enumerate(sizes)]
    return Stream(events, (), 1, 0)


def stream_of(*steps: int | tuple[int, int]) -> Stream:
    """(block, size) takes a block, a bare number frees it."""
    events: list[Event] = [
        Freed(step, Phase.BACKWARD)
        if isinstance(step, int)
        else Allocated(step[0], step[1], Kind.ACTIVATIONS, Phase.FORWARD, f"op {step[0]}")
        for step in steps
    ]
    return Stream(events, (0,), 1, 0)


class Job:
    """Writes down what two steps of a transformer with Adam take and free."""

    def __init__(
        self,
        batch: int = 4,
        *,
        layers: int = 4,
        accumulate: int = 1,
        states: int = 2,
        recomputed: bool = False,
        logits: int = LOGITS,
        kept: int = KEPT,
    ) -> None:
        self.batch, self.accumulate, self.recomputed = batch, accumulate, recomputed
        self.logits, self.kept, self.states = logits * batch, kept * batch, states
        self.weights = (EMBEDDING, *(size for _ in range(layers) for size in LAYER))
        self.events: list[Event] = []
        self.starts: list[int] = []
        self._numbers = count()

    def stream(self) -> Stream:
        for size in self.weights:
            self._take(size, Kind.WEIGHTS, Phase.SETUP)
        for step in range(2):
            self.starts.append(len(self.events))
            self._step(first=step == 0)
        return Stream(tuple(self.events), tuple(self.starts), self.batch, sum(self.weights) // 4)

    def _step(self, *, first: bool) -> None:
        gradients: list[int] = []
        for micro_batch in range(self.accumulate):
            kept = [self._forward(size) for size in self.weights]
            gradients += self._backward(kept, held=micro_batch > 0)
        for size in self.weights if first else ():
            for _ in range(self.states):
                self._take(size, Kind.OPTIMIZER, Phase.OPTIMIZER, "aten::zeros_like")
        scratch = [self._take(s, Kind.TEMPORARY, Phase.OPTIMIZER, "sqrt") for s in self.weights]
        self._free(scratch, Phase.OPTIMIZER)
        self._free(gradients, Phase.OPTIMIZER)

    def _forward(self, weight: int) -> list[int]:
        if weight == EMBEDDING:
            return [self._take(self.kept, Kind.BATCH, Phase.FORWARD, "batch")]
        made = self._kept()
        if not self.recomputed:
            return made
        self._free(made[1:], Phase.FORWARD)
        return made[:1]

    def _kept(self, phase: Phase = Phase.FORWARD) -> list[int]:
        return [
            self._take(size, Kind.ACTIVATIONS, phase, "aten::mm")
            for size in (self.kept // 4, self.kept)
        ]

    def _backward(self, kept: Sequence[list[int]], *, held: bool) -> list[int]:
        forward, backward = Phase.FORWARD, Phase.BACKWARD
        head = self._take(self.logits, Kind.ACTIVATIONS, forward, "aten::mm")
        log = self._take(self.logits, Kind.ACTIVATIONS, forward, "aten::_log_softmax")
        name = "aten::_log_softmax_backward_data"
        back = self._take(self.logits, Kind.TEMPORARY, backward, name)
        self._free([log, back, head], backward)
        made = []
        for size, blocks in zip(reversed(self.weights), reversed(kept), strict=True):
            again = self._kept(backward) if self.recomputed and len(blocks) == 1 else []
            kind = Kind.TEMPORARY if held else Kind.GRADIENTS
            gradient = self._take(size, kind, backward, "aten::mm")
            self._free([*again, *blocks], backward)
            if held:
                self._free([gradient], backward)
            else:
                made.append(gradient)
        return made

    def _take(self, size: int, kind: Kind, phase: Phase, name: str = "") -> int:
        number = next(self._numbers)
        self.events.append(Allocated(number, size, kind, phase, name))
        return number

    def _free(self, blocks: Sequence[int], phase: Phase) -> None:
        self.events.extend(Freed(block, phase) for block in blocks)
