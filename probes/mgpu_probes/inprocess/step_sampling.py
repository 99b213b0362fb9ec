"""Times only some steps of a loop with short steps. Between them the hooks rest.

On the CPU the hooks of a timed step cost about a third of a step of 0.2 ms. Therefore, once the
steps of a loop are short and repeat mark for mark (`step_fast_path`), only one step in `INTERVAL`
is timed. In the others no hook of an adapter does anything, except for two kinds: one hook counts
the optimizer's updates, and the hooks around collectives stay, because the analysis of hangs needs
them.

- **Which steps.** As for a device's clock, the key of a turn decides: the sequence number of its
  collectives, or the number of the step without collectives. So all ranks time the same steps.
- **Records.** Each untimed step has a record with its end, wall time and number, the flag
  `layout.UNTIMED`, and NaN for all phases. An untimed step ends with its update, a few microseconds
  before the next fetch. The records are written when the hooks return; a killed process loses
  those of at most `MOST_TURNS` steps, but the now cell always shows the number of steps.
- **Return.** At the update of the last untimed step the hooks are put back, so that they see the
  next turn from its first mark. They return at once after a step longer than `LONG_NS`, and after
  any timed step that is not short they stay until `JUDGED` timed steps in a row were short. They
  also return at any mark that is not part of the repeated turn: the start of an epoch, a
  checkpoint, the end of the process. Steps that are timed for such a reason have the flag
  `layout.OUT_OF_TURN`, until `SETTLED` in a row are timed.
- **Hangs.** If no update is counted for a poll, a thread shows the phase of the training thread by
  its stack, so that a rank that waits in a backward pass is not taken for one that stays away.

Not sampled: loops whose turn has no or several optimizer steps or begins with neither a fetch nor a
wrapped module, strategies other than DistributedDataParallel, devices, and processes that compile
code. The adapter decides (`HookSwitch`).
"""

from __future__ import annotations

import sys
import time
from math import nan
from threading import get_ident
from typing import TYPE_CHECKING

from . import layout, masked_threads
from .device_clock import is_sampled
from .phase_ledger import PHASE_WORD, SINCE_WORD
from .step_engine import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import FrameType
    from typing import Protocol

    from .probe_context import ProbeContext
    from .step_marks import Data, Mark
    from .step_segments import Step

    class HookSwitch(Protocol):
        """How an adapter's hooks rest and return."""

        def counted_mark(self, marks: Sequence[Mark | None]) -> int | None:
            """Index of the mark in this turn that the counting hook stands for; None: the hooks of
            such a turn must not rest."""

        def rest(self, count: Callable[[], None]) -> None:
            """Makes the hooks rest. `count` is called after each update from now on."""

        def resume(self) -> None:
            """Puts the hooks back, in their old order."""

        def phase_of(self, frame: FrameType) -> int:
            """The phase in which a thread with this innermost frame is."""


INTERVAL = 64
"""One short step in this many is timed: 50 per second in a loop of 0.3 ms."""
MOST_TURNS = 4 * INTERVAL
"""Untimed steps in a row, at most."""
FIRST_STEPS = 1000
"""Steps of a process that are all timed, so that a short job is known completely."""
SHORT_NS, LONG_NS = 1_000_000, 2_000_000
"""Timed steps shorter than the first are short; an untimed step longer than the second brings the
hooks back. Longer steps are not slowed down by the hooks (0.07 ms) enough to matter."""
JUDGED = 4
"""Timed steps in a row that must be short before hooks rest."""
MOST_FUTILE = 8
"""Rests in a row that ended within two steps, after which the hooks stay for good."""
SETTLED = 64
"""Timed steps in a row after which the next ones count as all timed, not as a disturbance."""
POLL_SECONDS = 0.5

_ALL_SHORT = (1 << JUDGED) - 1
_UNKNOWN = (nan,) * len(layout.PHASES)


def untimed_turns(key: int, growth: int, most: int) -> int:
    """Turns until the next one that is timed, from the turn with this key on; at most `most`.
    `growth`: from the key of a turn to that of the next."""
    for turns in range(most):
        if is_sampled(key + turns * growth, INTERVAL):
            return turns
    return most


class StepSampler:
    """Decides at the end of each timed step whether hooks rest. All methods but `locate` are called
    by the training thread."""

    def __init__(self, context: ProbeContext) -> None:
        self.is_resting = False
        self.is_completing = False
        """The hooks are back, and the last untimed step waits for the mark that ends its turn."""
        self._context = context
        self._fast_path = context.fast_path
        self.timed = SETTLED
        """Timed steps since the hooks rested, at most `SETTLED`."""
        self._short = 0
        """A bit for each of the last timed steps: whether it was short."""
        self._marks: Sequence[Mark | None] = ()
        """The repeated turn that was judged last."""
        self._stray: Collection[Mark | None] = ()
        """Its marks, which hooks may still set that ran when they were to rest."""
        self._counted: int | None = None
        self._turns = self._start = self._last = 0
        self._key = self._growth = 0
        """The sequence number at the begin of the first untimed step without a record, and its
        growth per turn."""
        self._at_update = self._after_update = 0
        """Sequence number at the update of the last untimed step; collectives after an update."""
        self._ends: list[int] = []
        """The ends of the untimed steps without a record, monotonic ns."""
        self._futile = 0
        self._is_watched = False
        self._seen = 0

    def flag(self, step: Step) -> int:
        """The flag of a timed step. Steps that are timed because an earlier one was long are no
        fair sample: disturbances come in groups."""
        self.timed += 1
        key = step.before[0] if step.after[0] != step.before[0] else self._context.recorded
        return 0 if is_sampled(key, INTERVAL) else layout.OUT_OF_TURN

    def turn_ended(self, step: Step) -> None:
        """Notes a timed step. If the loop's steps are short and the next one is not to be timed,
        makes the hooks rest."""
        short = step.end - step.start < SHORT_NS
        self._short = (self._short << 1 | short) & _ALL_SHORT
        if self._short != _ALL_SHORT or not self._may_rest():
            return
        context = self._context
        growth = step.after[0] - step.before[0]
        key = step.after[0] if growth else context.recorded
        most = min(MOST_TURNS, context.callbacks_due - context.recorded)
        turns = untimed_turns(key, growth or 1, most)
        if turns > 0 and growth >= 0:
            self._key, self._growth = step.after[0], growth
            self._rest(turns, step.end)

    def _may_rest(self) -> bool:
        context = self._context
        hooks = context.hook_switch
        if (
            hooks is None
            or self._futile >= MOST_FUTILE
            or context.recorded < FIRST_STEPS
            or context.device_clock != "cpu"
            or context.every_step is not None
            or context.objects.unseen_waits is not None
        ):
            return False
        marks = self._fast_path.repeated
        if marks is not self._marks:
            self._marks = marks
            self._counted = hooks.counted_mark(marks) if marks else None
            self._stray = frozenset(marks)
        return self._counted is not None

    def _rest(self, turns: int, now: int) -> None:
        context, hooks = self._context, self._context.hook_switch
        if hooks is None:
            return
        self._turns, self._start, self._last = turns, now, now
        self.is_resting = True
        self.timed = 0
        self._fast_path.lost = self._interrupt
        context.mark = self._mark
        hooks.rest(self._count)
        if not self._is_watched:
            self._is_watched = True
            _start_watch(context, self)

    def _count(self) -> None:
        """An untimed step has updated the weights."""
        context, ends = self._context, self._ends
        now = context.clock()
        ends.append(now)
        context.recorded = recorded = context.recorded + 1
        ledger = context.ledger
        ledger.phase = layout.OTHER
        ledger.step_bits = bits = recorded << 8
        words = ledger.words
        words[PHASE_WORD] = layout.OTHER | bits
        words[SINCE_WORD] = now
        is_long = now - self._last > LONG_NS
        self._last = now
        if len(ends) >= self._turns or is_long or context.every_step is not None:
            self._return(now)

    def _return(self, now: int) -> None:
        """Puts the hooks back at the update of an untimed step, and records the steps before. Not
        at the end of its turn, where that would count as part of the timed step."""
        self._switch_on()
        self._at_update = self._context.sequence()
        self._record(len(self._ends) - 1, self._at_update + self._after_update)
        self.is_completing = True
        self._fast_path.skip((self._counted or 0) + 1, self._start, now)

    def _switch_on(self) -> None:
        self.is_resting = False
        self._context.mark = self._fast_path.mark
        if self._context.hook_switch is not None:
            self._context.hook_switch.resume()

    def complete(self, step: Step) -> None:
        """Records the last untimed step, which is `step`."""
        self._ends[-1] = step.end
        self.is_completing = False
        self._fast_path.lost = None
        self._futile = 0
        self._after_update = step.after[0] - self._at_update
        self._record(1, step.after[0])

    def _record(self, count: int, sequence: int) -> None:
        """Writes the records of the first `count` untimed steps. `sequence`: at the end of all of
        them. If it did not grow equally, those of the steps between are unknown."""
        context, ends = self._context, self._ends
        box, number = context.box, context.recorded - len(ends)
        is_even = sequence - self._key == self._growth * len(ends)
        for end in ends[:count]:
            self._key += self._growth
            if box is not None:
                box.step(
                    end,
                    end - self._start,
                    number,
                    layout.UNTIMED,
                    _UNKNOWN,
                    gc_s=nan,
                    group_seq=self._key if is_even else 0,
                )
            self._start = end
            number += 1
        context.ledger.marks += count
        del ends[:count]

    def _mark(self, mark: Mark, now: int, data: Data = ()) -> None:
        """Takes the marks that come while the hooks rest."""
        ledger = self._context.ledger
        if mark is Steps.call_begins:
            self._show(layout.WAIT, now)
        elif ledger.phase == layout.WAIT:
            self._show(layout.OTHER, now)
        elif mark not in self._stray:
            self._interrupt()
            self._context.mark(mark, now, data)

    def _show(self, phase: int, now: int) -> None:
        ledger = self._context.ledger
        ledger.phase = phase
        ledger.words[PHASE_WORD] = phase | ledger.step_bits
        ledger.words[SINCE_WORD] = now

    def show_wait(self) -> None:
        """Shows that this rank has waited for others since its last update."""
        self._show(layout.WAIT, self._last)

    def _interrupt(self) -> None:
        """Puts the hooks back within a turn: what follows is not part of a repeated one. The time
        since the last update becomes part of the next step, as `other`."""
        if self.is_resting:
            self._futile = self._futile + 1 if len(self._ends) < 2 else 0
            self._switch_on()
        self.is_completing = False
        self._fast_path.lost = None
        self._short = 0
        self._record(len(self._ends), self._context.sequence())
        self._fast_path.restart(self._start)

    def interrupt(self) -> None:
        """Puts the hooks back, if they rest and the calling thread trains."""
        if self.is_resting and get_ident() == self._context.owner:
            self._interrupt()

    def give_up(self) -> None:
        """Lets the hooks rest no more."""
        self._futile = MOST_FUTILE
        self.interrupt()

    def stop(self) -> None:
        """Puts the hooks back for good, without recording anything."""
        if self.is_resting:
            self._switch_on()
        self._futile = MOST_FUTILE

    def locate(self) -> None:
        """Shows the phase of the training thread by its stack, if it has counted no update since
        the last call. Called by another thread."""
        context, words = self._context, self._context.ledger.words
        since, now = words[SINCE_WORD], words[PHASE_WORD]
        if since != self._seen:
            self._seen = since
            return
        hooks, frame = context.hook_switch, sys._current_frames().get(context.owner)
        if hooks is None or frame is None or now & 0xFF == layout.WAIT:
            return
        phase = hooks.phase_of(frame)
        if self.is_resting and words[SINCE_WORD] == since:
            words[PHASE_WORD] = phase | now & ~0xFF


def _start_watch(context: ProbeContext, sampler: StepSampler) -> None:
    try:
        masked_threads.start(_watch, context, sampler)
    except RuntimeError:  # no thread can be started: a hang is shown as `other`
        return


def _watch(context: ProbeContext, sampler: StepSampler) -> None:
    while context.on and context.sampler is sampler:
        time.sleep(POLL_SECONDS)
        if sampler.is_resting:
            sampler.locate()
