"""The fast path in front of the step engine: turns that repeat mark for mark cost a fraction.

Between the operations of a training step Python code runs with cold caches, so the cost of a mark
is the amount of code and data that it touches. The engine (`Steps`) decides at every mark what it
means. When a loop has repeated the same marks for a few turns, this class asks a copy of the engine
what such a turn means, and from then on only compares marks and stores their moments. On any other
mark, or any other use of the engine, it first replays the marks of the open turn to the engine.

Measured against the engine alone (µs per step, the least of 30 interleaved repetitions, on a busy
machine with two cores; cold: 6 MiB are written between the marks):

| marks per step | engine | fast path | engine, cold | fast path, cold |
|---|---|---|---|---|
| 9 (loader, forward, backward, optimizer) | 19 | 4.5 | 82 | 29 |
| 29 (and ten collectives) | 32 | 10 | 198 | 75 |

A mark is identified by its function object (`step_marks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from . import layout
from .phase_ledger import PHASE_WORD, SHOWN, SINCE_WORD, Ledger
from .step_engine import Steps
from .step_marks import APART, Data, Mark, backward_ended, fetched
from .step_segments import Facts, Step
from .wrap import around

State = tuple[object, ...]

TURNS_TO_BELIEVE = 4
"""Equal turns in a row after which a copy of the engine is asked; again after 8, 16, 32, …"""
LONGEST = 256
"""Marks of a turn at most; longer turns are left to the engine."""
_COLD = 6
"""How many times more a hook costs between the operations of a step, with cold caches, than in the
loop of `mark_cost` (benchmarks/probe_cost.py, torch 2.13, CPU; it includes writing the step's
record). Machines with other caches differ. Not counted: what the hooks displace from the caches."""
_CALIBRATIONS, _CALIBRATION_ROUNDS = 5, 20
"""The fastest calibration counts: during the others the machine may have run something else."""
_NOTHING: list[Mark | None] = [None]
_UNSET: dict[Mark | None, Data] = {fetched: (0, 0), backward_ended: (nan,)}
"""The data of marks that were not set."""


class StepFastPath:
    """Takes all marks of the training thread, and hands them to the engine if needed."""

    def __init__(
        self, ledger: Ledger, emit: Callable[[Step], None], facts: Callable[[], Facts]
    ) -> None:
        self.ledger = ledger
        self._emit = emit
        self._facts = facts
        self._steps = Steps(ledger, self._emit_step, facts)
        self._end = -1
        self._tape: list[Mark] = []
        self._last_tape: list[Mark] = []
        self._repeats = 0
        self._learned: tuple[list[Mark | None], State] = ([], ())
        # On the fast path: the expected marks, and those that have come in the open turn.
        self._expected = _NOTHING
        self._at = 0
        self._length = 0
        self._phases: list[int] = []
        self._shown: list[int] = []
        self._moments: list[int] = []
        self._data: list[Data] = []
        self._since = self._rest = 0
        self._before: Facts = ()
        self._usual = Step(0, 0, (), 0, False, 0, 0, nan, 0, 0, (), ())
        self._fetches: list[int] = []
        self._losses: list[int] = []
        self.lost: Callable[[], None] | None = None
        """Called instead of replaying the open turn to the engine, while some of its marks are not
        set; it must call `restart`."""

    @property
    def repeated(self) -> Sequence[Mark | None]:
        """The marks of the turn that repeats, the one that begins it last; empty: none repeats."""
        return () if self._expected is _NOTHING else self._expected

    @property
    def level(self) -> int:
        """The sign by which the loop's steps are recognised (`step_segments`); 0: none yet."""
        return self._steps.level

    @property
    def only_updates(self) -> bool:
        """As `Steps.only_updates`."""
        return self._steps.only_updates

    def engine(self) -> Steps:
        """The engine, brought up to date, for any use other than a mark."""
        if self._expected is not _NOTHING:
            self._falter()
        self._tape = []
        self._repeats = 0
        return self._steps

    def copy_at_rest(self, now: int, emit: Callable[[Step], None]) -> Steps | None:
        """A copy of the engine whose turn begins at `now`, if a turn has just begun here."""
        if self._expected is not _NOTHING:
            if self._at:
                return None
            twin = self._steps.twin(now, emit)
            twin.ledger.phase = self._rest
            return twin
        steps = self._steps
        return steps.twin(now, emit) if steps.at_rest(self._end) else None

    def copy_at_cut(self, now: int, emit: Callable[[Step], None]) -> tuple[int, Steps] | None:
        """The moment (ns) at which a turn may have begun, as the next mark may show, and a copy of
        the engine whose turn begins at `now`. None: no turn can have begun."""
        steps = self._steps
        if self._expected is not _NOTHING or not steps.may_have_turned:
            return None
        return steps.now.start, steps.twin(now, emit)

    def mark(self, mark: Mark, now: int, data: Data = ()) -> None:
        """A mark at `now` (monotonic ns)."""
        at = self._at
        if self._expected[at] is not mark:
            self._unexpected(mark, now, data)
            return
        self._moments[at] = now
        self._data[at] = data
        at += 1
        if at == self._length:
            at = 0
            self._turn(now)
        self._at = at
        ledger = self.ledger
        ledger.phase = phase = self._shown[at]
        words = ledger.words
        words[PHASE_WORD] = phase | ledger.step_bits
        words[SINCE_WORD] = now

    def skip(self, count: int, since: int, now: int) -> None:
        """Goes on after the first `count` marks of the repeated turn, which were not set and count
        as set at `now`. The turn began at `since`."""
        self._since, self._at = since, count
        for at in range(count):
            self._moments[at] = now
            self._data[at] = _UNSET.get(self._expected[at], ())
        ledger = self.ledger
        ledger.phase = phase = self._shown[count]
        ledger.words[PHASE_WORD] = phase | ledger.step_bits
        ledger.words[SINCE_WORD] = now

    def restart(self, since: int) -> None:
        """Leaves the fast path at the beginning of a turn some of whose marks were not set. The
        time from `since` to its next mark is `other`."""
        self._expected, self._at = _NOTHING, 0
        self._repeats, self._tape = 0, []
        self._steps.rebase(since, self._facts(), layout.OTHER)
        self.ledger.outer.clear()

    def _turn(self, now: int) -> None:
        phases = [0] * len(layout.PHASES)
        start = since = self._since
        for phase, moment in zip(self._phases, self._moments):  # noqa: B905 - equal by making
            phases[phase] += moment - since
            since = moment
        data = self._data
        samples = tokens = 0
        loss = nan
        for at in self._fetches:
            samples += data[at][0]
            tokens += data[at][1]
        for at in self._losses:
            if data[at][0] == data[at][0]:  # not NaN
                loss = data[at][0]
        usual, before = self._usual, self._before
        self._since = now
        self._before = after = self._facts()
        self.ledger.marks += self._length
        step = (
            start,
            now,
            tuple(phases),
            usual.level,
            False,
            samples,
            tokens,
            loss,
            usual.backwards,
            usual.collectives,
            before,
            after,
        )
        self._emit(tuple.__new__(Step, step))  # as Step(*step), without a call of its own

    # --- on and off the fast path -------------------------------------------------------------

    def _unexpected(self, mark: Mark, now: int, data: Data) -> None:
        if mark in APART:
            mark(self.engine(), now, *data)
            return
        if self._expected is not _NOTHING:
            self._falter()
        mark(self._steps, now, *data)
        tape = self._tape
        if self._end == now and self._steps.at_rest(now):
            self._repeats = self._repeats + 1 if tape == self._last_tape else 0
            self._last_tape, self._tape = tape, [mark]
            repeats = self._repeats
            if (
                repeats >= TURNS_TO_BELIEVE
                and not repeats & (repeats - 1)
                and len(tape) < LONGEST
                and tape[0] is mark
            ):
                self._enter(now)
        elif len(tape) < LONGEST:
            tape.append(mark)

    def _emit_step(self, step: Step) -> None:
        self._end = step.end
        self._emit(step)

    def _enter(self, now: int) -> None:
        tape: list[Mark | None] = [*self._last_tape[1:], self._last_tape[0]]
        state = self._steps.state()
        if (tape, state) != self._learned and not self._learn(tape, state, now):
            return
        self._expected = self._learned[0]
        self._at = 0
        self._since, self._before = now, self._steps.now.before
        self._rest = self.ledger.phase

    def _learn(self, tape: list[Mark | None], state: State, now: int) -> bool:
        """Plays a turn to a copy of the engine, whose i-th interval lasts 2**i ns: the bits of a
        phase's time then show which intervals belong to it. Returns whether the turn can repeat: it
        is exactly one step, and leaves the copy in the same state."""
        emitted: list[Step] = []
        twin = self._steps.twin(now, emitted.append)
        moment, shown = now, [SHOWN[twin.ledger.phase]]
        fetches: list[int] = []
        losses: list[int] = []
        for at, mark in enumerate(filter(None, tape)):
            moment += 1 << at
            if mark is fetched:
                fetches.append(at)
                mark(twin, moment, 1, 1)
            elif mark is backward_ended:
                losses.append(at)
                mark(twin, moment, float(at))
            else:
                mark(twin, moment)
            shown.append(SHOWN[twin.ledger.phase])
        if len(emitted) != 1 or not twin.at_rest(moment) or twin.state() != state:
            return False
        (step,) = emitted
        intervals = [
            [phase for phase, time in enumerate(step.phases) if time >> at & 1]
            for at in range(len(tape))
        ]
        if (
            (step.start, step.end) != (now, moment)
            or any(len(phases) != 1 for phases in intervals)
            or (step.samples, step.tokens) != (len(fetches), len(fetches))
            or (losses and step.loss != losses[-1])
            or step.skipped
        ):
            return False
        self._learned = tape, twin.state()
        self._length = len(tape)
        self._phases = [phases[0] for phases in intervals]
        self._shown = shown
        self._moments = [now] * len(tape)
        self._data = [()] * len(tape)
        self._usual, self._fetches, self._losses = step, fetches, losses
        return True

    def _falter(self) -> None:
        """Leaves the fast path: replays the marks of the open turn to the engine."""
        if self.lost is not None:
            self.lost()
            return
        expected, length = self._expected, self._at
        self._expected, self._at = _NOTHING, 0
        self._repeats = 0
        self._tape = [self._last_tape[0]]
        self._steps.rebase(self._since, self._before, self._rest)
        for mark, now, data in zip(expected[:length], self._moments, self._data, strict=False):
            if mark is not None:
                self._tape.append(mark)
                mark(self._steps, now, *data)


def mark_cost(
    clock: Callable[[], int], facts: Callable[[], Facts], failed: Callable[[Exception], None]
) -> int:
    """The measured cost of a mark by a hook in ns, for the box's counter of the probe's own
    cost."""
    trial = StepFastPath(Ledger(clock()), lambda _: None, facts)

    def begins(*_: Any) -> bool:
        trial.mark(Steps.clipping_begins, clock())
        return True

    def ends(*_: Any) -> None:
        trial.mark(Steps.clipping_ends, clock())

    hook = around(bool, begins, ends, failed)
    spent = []
    for _ in range(_CALIBRATIONS):
        began = time.perf_counter_ns()
        for _ in range(_CALIBRATION_ROUNDS):
            hook()
        spent.append(time.perf_counter_ns() - began)
    return min(spent) * _COLD // (2 * _CALIBRATION_ROUNDS)
