"""What a training step allocates and frees, in order: traced once, replayed by the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The purpose of a block of memory."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    BUCKETS = "buckets"
    BATCH = "batch"
    TEMPORARY = "temporary"


class Phase(Enum):
    """When in the life of the job a block is taken."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Allocated:
    """A block is allocated; `size`: bytes asked for, before any rounding; `name`: the operator."""

    block: int
    size: int
    kind: Kind
    phase: Phase
    name: str = ""


@dataclass(frozen=True, slots=True)
class Freed:
    """The block of that number is given back."""

    block: int
    phase: Phase


Event = Allocated | Freed


@dataclass(frozen=True, slots=True)
class Stream:
    """Set-up and some steps of one rank. A number is never used for two blocks.

    `steps`: index of the first event of each step; what lies before the first is set-up. `samples`:
    in one micro-batch. `parameters`: their number (not bytes), of the whole model.
    """

    events: Sequence[Event]
    steps: Sequence[int]
    samples: int
    parameters: int
