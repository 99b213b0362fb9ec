"""The data of the step engine: pieces of time between marks at which a step might end, and
steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import nan
from typing import NamedTuple

from . import layout
from .phase_ledger import BUCKETS

CALLS, FETCHED, BACKWARD, UPDATE, MARKED = 1, 2, 3, 4, 5
"""Levels: by which sign a step is recognised, the surest last: a recurring collective, a batch
fetch together with a collective, a backward pass, an optimizer's update, a mark of the program
itself (`mgpu_doctor.step`)."""

Facts = Sequence[int]
"""Counters at one moment: sequence number of the newest collective, CPU ns of the thread, ns in
Python's garbage collector, device bytes."""

Call = tuple[str, int, str]
"""A call site: file, line, name of the collective."""


class Piece:
    """What happened between two moments at which a step might end. `booked`: ns per phase; `tail`:
    it follows the sign of a turn, so it may belong to the next one."""

    __slots__ = (
        "after",
        "awaits",
        "backwards",
        "before",
        "booked",
        "call",
        "collectives",
        "end",
        "fetches",
        "got",
        "level",
        "loader",
        "loss",
        "samples",
        "sign",
        "skipped",
        "start",
        "tail",
        "tokens",
    )

    def __init__(self, start: int, before: Facts, *, loader: int = 0, tail: bool = False) -> None:
        self.start = self.end = start
        self.before = self.after = before
        self.booked: list[int] = []
        self.loader = loader
        self.tail = tail
        self.level = 0
        self.sign = 0
        self.fetches = self.samples = self.tokens = 0
        self.backwards = self.collectives = 0
        self.got = -1  # the ledger's marks when its batch was there
        self.skipped = False
        self.awaits = False  # its batch may be for the backward pass of a later piece
        self.loss = nan
        self.call: Call | None = None

    def evaluates(self, training: Collection[int]) -> bool:
        """Whether it is evaluation: a batch of a loader that does not feed training, and no sign of
        training."""
        return (
            self.loader != 0
            and not self.backwards
            and not self.level
            and self.loader not in training
        )

    def absorbs(self, other: Piece) -> bool:
        """Merges the next piece into this one if both are unused batches of the same loader.
        Returns whether it did."""
        if not self.evaluates(()) or not other.evaluates(()) or self.loader != other.loader:
            return False
        self.booked = [mine + more for mine, more in zip(self.booked, other.booked, strict=True)]
        self.end, self.after = other.end, other.after
        self.fetches += other.fetches
        self.samples += other.samples
        self.tokens += other.tokens
        self.collectives += other.collectives
        self.awaits = other.awaits
        return True


class Step(NamedTuple):
    """One turn of the training loop. Times in monotonic ns, `phases` in ns by `layout.PHASES`."""

    start: int
    end: int
    phases: tuple[int, ...]
    level: int
    skipped: bool
    samples: int
    tokens: int
    loss: float
    backwards: int
    collectives: int
    before: Facts
    after: Facts


def level_of(pieces: Iterable[Piece]) -> int:
    """The level of the surest sign among the pieces; 0: there is none."""
    level = 0
    fetched = called = False
    for piece in pieces:
        level = max(level, piece.level)
        fetched |= piece.fetches > 0
        called |= piece.collectives > 0
    return level or (FETCHED if fetched and called else 0)


def joined(pieces: Sequence[Piece], level: int, training: Collection[int]) -> Step:
    """The step made of these pieces. `training`: the loaders known to feed backward passes."""
    evaluated: list[Piece] = []
    # A turn that the program marks itself may train without a backward pass that hooks see.
    if level >= BACKWARD and (level < MARKED or any(p.backwards or p.level for p in pieces)):
        evaluated = [piece for piece in pieces if piece.loader and piece.evaluates(training)]
    trained = [piece for piece in pieces if piece not in evaluated] if evaluated else pieces
    phases = list(map(sum, zip(*[piece.booked for piece in trained], strict=True)))
    phases = phases or [0] * BUCKETS
    phases[layout.OTHER if level >= FETCHED else layout.FORWARD] += phases.pop()
    for piece in evaluated:
        wait = piece.booked[layout.WAIT]
        phases[layout.EVALUATION] += sum(piece.booked) - wait
        phases[layout.WAIT] += wait
    samples = tokens = backwards = collectives = 0
    skipped = updated = False
    loss = nan
    for piece in trained:
        samples += piece.samples
        tokens += piece.tokens
        backwards += piece.backwards
        if piece.loss == piece.loss:  # not NaN
            loss = piece.loss
        if piece.level == UPDATE:
            skipped |= piece.skipped
            updated |= not piece.skipped
    for piece in pieces:
        collectives += piece.collectives
    first, last = pieces[0], pieces[-1]
    return Step(
        start=first.start,
        end=last.end,
        phases=tuple(phases),
        level=level,
        skipped=skipped and not updated,
        samples=samples,
        tokens=tokens,
        loss=loss,
        backwards=backwards,
        collectives=collectives,
        before=first.before,
        after=last.after,
    )
