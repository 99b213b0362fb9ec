"""The step engine: finds the steps of a training loop in the marks that hooks set, and divides the
time of each into phases.

`ProbeContext.mark` passes marks on, in the training thread, mostly through `step_fast_path`;
complete steps go to `emit`. The engine uses no clock and no torch and never waits: the caller gives
the moment of each mark (monotonic ns). This module holds the meaning of each mark; `step_detection`
finds the turns of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import isnan, nan
from operator import attrgetter

from . import layout
from .phase_ledger import PENDING, Ledger
from .step_detection import CALLS_TO_BELIEVE_AT_THE_END, IN_BACKWARD, StepDetector, no_facts
from .step_segments import BACKWARD, CALLS, FETCHED, UPDATE, Call, Facts, Piece, Step

_PAUSES = (layout.CHECKPOINT, layout.EVALUATION)
_TRAINING = (layout.TRANSFER, layout.FORWARD, layout.BACKWARD, layout.OPTIMIZER)

DECIDING = (
    "level",
    "optimizers_exist",
    "begun",
    "_level",
    "_fetched",
    "_called_one",
    "_held",
    "_cuts",
    "_pattern",
    "_unsure",
    "_sure",
    "_only_sign",
    "_alone",
    "_last_loader",
    "_waited_for",
    "_repeats",
    "_calm",
    "_led_by_updates",
    "_in_backward",
    "_in_update",
    "_waits",
    "_updated_in_backward",
    "_stepped",
    "_looping",
    "_derived",
    "_marked_depth",
    "_due",
)
"""Attributes of the engine that decide what a mark means; none of them is a time."""
_DECIDING = attrgetter(*DECIDING)


class Steps(StepDetector):
    """The step engine. Each public method is a mark, unless noted; all come from one thread."""

    def fetch_begins(self, loader: int, now: int, *, training: bool = True) -> None:
        """The loop fetches a batch from a loader; `training`: gradients are enabled."""
        ledger = self.ledger
        if ledger.outer and not self._update_was_left(now):
            ledger.enter(self._within(layout.INPUT), now)
            return
        self._loops()
        if self.begun:
            self.now.awaits |= training and self.now.got == ledger.marks
            ledger.explain(layout.OTHER, now)
            ledger.settle(PENDING, now)
            self._close(now)
            if self._is_turn():
                self._split()
                self._finish(self.pieces)
                self._keep([])
        self._open(now, loader=loader)
        if training:
            self._last_loader = loader
        ledger.enter(layout.INPUT, now)

    def fetch_ends(self, now: int, samples: int = 0, tokens: int = 0, *, got: bool = True) -> None:
        """The fetch has returned a batch (`got`), or found the loader exhausted."""
        self.ledger.leave(now)
        if got:
            self.now.fetches += 1
            self.now.samples += samples
            self.now.tokens += tokens
            self.now.got = self.ledger.marks

    def waits_for_input(self, now: int) -> None:
        """A loader starts an epoch: it starts its workers, or shuffles."""
        self.ledger.enter(layout.INPUT, now)

    def got_input(self, now: int) -> None:
        """The loader is ready for fetches."""
        self.ledger.leave(now)

    def forward_begins(self, now: int, *, training: bool = True) -> None:
        """A wrapped model is called by the loop; `training`: gradients are enabled."""
        ledger = self.ledger
        if ledger.outer:
            ledger.enter(self._within(layout.FORWARD), now)
            return
        ledger.explain(layout.OTHER, now)
        self._loops()
        if not self.begun:
            self._open(now)
        elif self.now.tail and training:
            self._close(now)
            self._open(now)
            self._candidate()
        self.now.awaits |= training
        ledger.settle(layout.FORWARD, now)

    def forward_ends(self, now: int, *, training: bool = True) -> None:
        """The model has returned. The time up to the backward pass, the loss, is forward, too."""
        if self.ledger.outer:
            self.ledger.leave(now)
        elif not training:
            self.ledger.settle(PENDING, now)

    def backward_begins(self, now: int) -> None:
        """A backward pass (or `autograd.grad`) begins; not set for a nested one."""
        ledger = self.ledger
        if not ledger.outer:
            self._loops()
            if not self.begun:
                self._open(now)
            ledger.explain(layout.FORWARD, now)
            if self.now.tail:
                self._candidate()
                self.now.tail = False
            if self._last_loader:
                self.training.add(self._last_loader)
            if self.now.loader:
                self.training.add(self.now.loader)
                self._feeds_together()
        self._in_backward += 1
        self._derived = True
        self.now.backwards += 1
        ledger.enter(layout.BACKWARD, now)

    def _feeds_together(self) -> None:
        """Adds all loaders whose batches precede this backward pass to the training loaders, if
        they also preceded the last one. A loader that is used only now and then is for
        evaluation."""
        waiting: set[int] = set()
        for piece in reversed(self.pieces):
            if not piece.awaits or piece.backwards or not piece.loader:
                break
            waiting.add(piece.loader)
        self.training |= waiting & self._waited_for
        self._waited_for = frozenset(waiting)

    def gradient_begins(self, now: int) -> None:
        """A backward pass that returns gradients without accumulating them, for a penalty term: it
        is not counted as a micro-batch."""
        self.backward_begins(now)
        self.now.backwards -= 1

    def backward_ends(self, now: int, waited: int = 0, loss: float = nan) -> None:
        """The backward pass ends; during its last `waited` ns this rank waited for others."""
        ledger = self.ledger
        if self._waits:
            self._waits = False
            ledger.leave(now)
        ledger.leave(now)
        if waited > 0:
            ledger.move(layout.BACKWARD, layout.WAIT, waited)
        self._in_backward -= 1
        if not isnan(loss):
            self.now.loss = loss
        if ledger.outer:
            if self._in_marked_phase():
                inside = self._updated_in_backward
                self._updated_in_backward = False
                self._due = (UPDATE, IN_BACKWARD) if inside else self._due or (BACKWARD, 0)
            return
        ledger.settle(PENDING, now)
        if self._updated_in_backward:
            self._updated_in_backward = False
            self._sign(now, UPDATE, IN_BACKWARD)
        elif self.level < UPDATE:
            self._sign(now, BACKWARD, 0)

    def update_begins(self, now: int) -> None:
        """An optimizer's step, or a gradient scaler's step around it, begins."""
        if not self._in_update:
            self._stepped = False
            if not self.ledger.outer:
                if not self.begun:
                    self._open(now)
                elif self._serves():
                    self._candidate()
                self.ledger.explain(layout.OTHER, now)
        self._in_update += 1
        self.ledger.enter(layout.OPTIMIZER, now)

    def update_ends(self, now: int, optimizer: int, *, scaler: bool = False) -> None:
        """The step ends. A scaler's step in which no optimizer stepped was skipped."""
        ledger = self.ledger
        if not self._in_update:
            return
        ledger.leave(now)
        self._in_update -= 1
        self._stepped |= not scaler
        if self._in_update:
            return
        if self._in_backward:
            self._updated_in_backward = True
        elif self._in_marked_phase():
            self.now.skipped = not self._stepped
            self._due = UPDATE, optimizer
        elif not ledger.outer:
            ledger.settle(PENDING, now)
            self.now.skipped = not self._stepped
            self._sign(now, UPDATE, optimizer)

    def clipping_begins(self, now: int) -> None:
        """Clipping of gradients begins: part of the update; ranks may communicate in it."""
        self.ledger.enter(layout.OPTIMIZER, now)

    def clipping_ends(self, now: int) -> None:
        """Clipping ends."""
        self.ledger.leave(now)

    def computing_begins(self, now: int) -> None:
        """A function without gradients begins, such as augmentation or metrics; counts as
        forward."""
        self.ledger.enter(self._within(layout.FORWARD), now)

    def computing_ends(self, now: int) -> None:
        """The function has returned."""
        self.ledger.leave(now)

    def reducing_begins(self, now: int) -> None:
        """A reduction of gradients after the backward pass begins; it counts as backward."""
        self.ledger.enter(layout.BACKWARD, now)

    def reducing_ends(self, now: int) -> None:
        """The reduction ends."""
        self.ledger.leave(now)

    def call_begins(self, now: int, *, sends: bool = False) -> None:
        """A collective, send or receive begins to block the caller."""
        ledger = self.ledger
        if not ledger.outer and (sends or self.level <= FETCHED):
            served = self.level == UPDATE and not self._looping
            ledger.explain(layout.OTHER if served else layout.FORWARD, now)
        ledger.enter(layout.WAIT, now)

    def call_ends(self, now: int, call: Call | None = None, *, recurs: bool = True) -> None:
        """The call returns. `call`: its call site; None: it was the wait for an earlier call.
        `recurs`: a repetition is a sign of a loop, unlike a broadcast or barrier during setup."""
        ledger = self.ledger
        ledger.leave(now)
        if call is None:
            return
        self.now.collectives += 1
        if ledger.outer or self.level >= UPDATE:
            return
        if self.now.tail:
            self._close(now)
            self._open(now, tail=True)
        elif recurs and self.level <= CALLS and not self._looping:
            self._called(now, call)

    def leave(self) -> None:
        """Ends the loop (no mark): emits complete turns and drops the rest."""
        if not self.begun:
            return
        if not self._looping and not self._pattern:
            self._look_for_pattern(CALLS_TO_BELIEVE_AT_THE_END)
        self._split()
        self._emit_unsure()
        if self._is_turn():
            self._finish(self.pieces)
        self._emit_held()
        self._keep([])
        self._cuts, self.begun = [], False

    def backward_waits(self, now: int) -> None:
        """The rank's own work of the backward pass ends; until the pass ends it waits for
        others."""
        if self._in_backward and not self._waits:
            self._waits = True
            self.ledger.enter(layout.WAIT, now)

    @property
    def only_updates(self) -> bool:
        """Whether an optimizer steps but no gradient is computed here, as in a parameter server."""
        return self.level == UPDATE and not self._derived

    def _serves(self) -> bool:
        """Whether there were only collectives or messages since the last update, as in a parameter
        server."""
        return not self._looping and self.now.tail and self.now.collectives > 0

    def _update_was_left(self, now: int) -> bool:
        """Leaves an update whose end was never marked, because the optimizer raised; True if so."""
        if self._in_backward or self.ledger.phase != layout.OPTIMIZER or self._marked_depth >= 0:
            return False
        while self.ledger.outer:
            self.ledger.leave(now)
        self._in_update = 0
        return True

    # --- set by the program itself (`manual_marks`) ---------------------------------------------

    def phase_begins(self, phase: int, now: int) -> None:
        """The program begins a phase that it marks itself. Hooks within it still set their marks;
        a sign of a turn that they see counts when the phase ends."""
        ledger = self.ledger
        if self._marked_depth >= 0:
            self.phase_ends(now)  # its end was lost
        self._marked_depth = len(ledger.outer)
        if phase == layout.INPUT:
            self.fetch_begins(0, now)
            return
        if not ledger.outer and phase in _TRAINING:
            ledger.explain(layout.FORWARD if phase == layout.BACKWARD else layout.OTHER, now)
            self._loops()
            if not self.begun:
                self._open(now)
            elif self.now.tail and phase == layout.BACKWARD:
                self._candidate()
                self.now.tail = False
            elif self.now.tail and phase != layout.OPTIMIZER:
                self._close(now)
                self._open(now)
                self._candidate()
            if phase in (layout.BACKWARD, layout.OPTIMIZER):
                self.training |= {self._last_loader, self.now.loader} - {0}
        ledger.enter(phase, now)

    def phase_ends(self, now: int) -> None:
        """The phase ends, and everything within it."""
        ledger, depth = self.ledger, self._marked_depth
        if depth < 0:
            return
        self._marked_depth = -1
        if ledger.phase == layout.INPUT and len(ledger.outer) == depth + 1:
            self.fetch_ends(now)
        while len(ledger.outer) > depth:
            ledger.leave(now)
        if self._due:
            (level, sign), self._due = self._due, ()
            if level == UPDATE or self.level < UPDATE:
                ledger.settle(PENDING, now)
                self._sign(now, level, sign)

    def turn_ends(self, now: int) -> None:
        """The program says that a turn of its loop has ended: the surest sign of all."""
        ledger = self.ledger
        if self._marked_depth >= 0:
            self.phase_ends(now)
        if ledger.outer and not self._update_was_left(now):
            return  # within a call of the framework, which is no place between turns
        ledger.settle(PENDING, now)
        self._finish_marked(now)

    def _in_marked_phase(self) -> bool:
        """Whether nothing but a phase that the program marked is open."""
        return self._marked_depth == 0 and len(self.ledger.outer) == 1

    def _within(self, phase: int) -> int:
        """The phase of what a hook sees: in a checkpoint or an evaluation it belongs to that."""
        return self.ledger.phase if self.ledger.phase in _PAUSES else phase

    # --- for the fast path and the device timer -------------------------------------------------

    @property
    def may_have_turned(self) -> bool:
        """Whether the next mark may show that a turn began at the start of the open piece."""
        return self.begun and self.now.tail and not self.ledger.outer

    def at_rest(self, now: int) -> bool:
        """Whether a turn began exactly at `now` and nothing from before it is undecided."""
        if not self.begun or self.now.start != now or any(self.ledger.booked):
            return False
        return not (self.pieces or self._held or self._cuts or self._unsure)

    def state(self) -> tuple[object, ...]:
        """Everything that decides what the next marks mean to an engine at rest; no times."""
        ledger, now = self.ledger, self.now
        nested = (list(ledger.outer), ledger.phase)
        return *_DECIDING(self), set(self.training), *nested, now.loader, now.tail

    def twin(self, now: int, emit: Callable[[Step], None]) -> Steps:
        """An independent copy of this engine whose turn begins at `now`; steps go to `emit`."""
        twin = copy(self)
        twin.emit, twin.facts = emit, no_facts
        twin.ledger = Ledger(now)
        twin.ledger.outer, twin.ledger.phase = list(self.ledger.outer), self.ledger.phase
        twin.now = Piece(now, no_facts(), loader=self.now.loader, tail=self.now.tail)
        twin.training = set(self.training)
        twin._held, twin._unsure, twin._cuts, twin._repeats = [], [], [], 0
        twin._keep([])
        twin._pattern = list(self._pattern)
        return twin

    def rebase(self, now: int, before: Facts, phase: int) -> None:
        """Moves an engine at rest to a later turn that began in the same way, at `now`."""
        self.now = Piece(now, before, loader=self.now.loader, tail=self.now.tail)
        self.ledger.phase, self.ledger.since = phase, now
