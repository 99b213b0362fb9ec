"""Finds the steps of a training loop in the marks that hooks set, and divides their time.

`ProbeContext.mark` passes the marks on, in the thread that trains; complete steps go to `emit`. No
clock, no torch, no wait: every mark is given its moment (monotonic ns) by the caller.
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
)
"""Attributes of the engine that decide what a mark means and hold no time."""
_DECIDING = attrgetter(*DECIDING)


class Steps(StepDetector):
    """Marks in, steps out. All marks come from one thread."""

    def fetch_begins(self, loader: int, now: int, *, training: bool = True) -> None:
        """The loop asks a loader for a batch; `training`: gradients are enabled."""
        ledger = self.ledger
        if ledger.outer and not self._update_was_left(now):
            ledger.enter(layout.INPUT, now)
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
        """The batch is there (`got`), or the loader is at its end."""
        self.ledger.leave(now)
        if got:
            self.now.fetches += 1
            self.now.samples += samples
            self.now.tokens += tokens
            self.now.got = self.ledger.marks

    def waits_for_input(self, now: int) -> None:
        """A loader starts its workers, or shuffles."""
        self.ledger.enter(layout.INPUT, now)

    def got_input(self, now: int) -> None:
        """It is ready to be asked for batches."""
        self.ledger.leave(now)

    def forward_begins(self, now: int, *, training: bool = True) -> None:
        """A wrapped model is called at the top of the loop."""
        ledger = self.ledger
        if ledger.outer:
            ledger.enter(layout.FORWARD, now)
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
        """The model has returned; what follows up to the backward pass is the loss."""
        if self.ledger.outer:
            self.ledger.leave(now)
        elif not training:
            self.ledger.settle(PENDING, now)

    def backward_begins(self, now: int) -> None:
        """A backward pass (or `autograd.grad`) starts; not for one inside another."""
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
        """Loaders whose batches wait for one backward pass feed it all, if they did before, too:
        one that is asked now and then gives batches to look at."""
        waiting: set[int] = set()
        for piece in reversed(self.pieces):
            if not piece.awaits or piece.backwards or not piece.loader:
                break
            waiting.add(piece.loader)
        self.training |= waiting & self._waited_for
        self._waited_for = frozenset(waiting)

    def gradient_begins(self, now: int) -> None:
        """A pass that gives gradients away and adds up none (a penalty's): no micro-batch."""
        self.backward_begins(now)
        self.now.backwards -= 1

    def backward_ends(self, now: int, waited: int = 0, loss: float = nan) -> None:
        """It is over; the last `waited` ns of it this rank stood waiting for others."""
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
            return
        ledger.settle(PENDING, now)
        if self._updated_in_backward:
            self._updated_in_backward = False
            self._sign(now, UPDATE, IN_BACKWARD)
        elif self.level < UPDATE:
            self._sign(now, BACKWARD, 0)

    def update_begins(self, now: int) -> None:
        """An optimizer's step, or a gradient scaler's around it, begins."""
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
        """It ends. A scaler's step in which no optimizer stepped was skipped."""
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
        elif not ledger.outer:
            ledger.settle(PENDING, now)
            self.now.skipped = not self._stepped
            self._sign(now, UPDATE, optimizer)

    def clipping_begins(self, now: int) -> None:
        """Gradients are being clipped: a part of the update, in which ranks may meet."""
        self.ledger.enter(layout.OPTIMIZER, now)

    def clipping_ends(self, now: int) -> None:
        """They are clipped."""
        self.ledger.leave(now)

    def computing_begins(self, now: int) -> None:
        """Something runs in the loop that computes, and no gradients: augments, adds up metrics."""
        self.ledger.enter(layout.FORWARD, now)

    def computing_ends(self, now: int) -> None:
        """It is over."""
        self.ledger.leave(now)

    def reducing_begins(self, now: int) -> None:
        """After a backward pass its gradients are brought together: a part of it."""
        self.ledger.enter(layout.BACKWARD, now)

    def reducing_ends(self, now: int) -> None:
        """They are where the update wants them."""
        self.ledger.leave(now)

    def call_begins(self, now: int, *, sends: bool = False) -> None:
        """A collective, send or receive blocks the caller from here on."""
        ledger = self.ledger
        if not ledger.outer and (sends or self.level <= FETCHED):
            served = self.level == UPDATE and not self._looping
            ledger.explain(layout.OTHER if served else layout.FORWARD, now)
        ledger.enter(layout.WAIT, now)

    def call_ends(self, now: int, call: Call | None = None, *, recurs: bool = True) -> None:
        """It returns. `call` tells call sites apart; None: the wait for an earlier call. `recurs`:
        it may be what a loop repeats, not a broadcast or barrier of its setting up."""
        ledger = self.ledger
        ledger.leave(now)
        if call is None:
            return
        self.now.collectives += 1
        if ledger.outer or self.level == UPDATE:
            return
        if self.now.tail:
            self._close(now)
            self._open(now, tail=True)
        elif recurs and self.level <= CALLS and not self._looping:
            self._called(now, call)

    def leave(self) -> None:
        """The loop is over: what is a whole turn is emitted, the rest is not."""
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
        """The own work of the backward pass is done; up to its end this rank waits for others."""
        if self._in_backward and not self._waits:
            self._waits = True
            self.ledger.enter(layout.WAIT, now)

    @property
    def only_updates(self) -> bool:
        """Whether an optimizer steps and no gradient was computed here: as a parameter server."""
        return self.level == UPDATE and not self._derived

    def _serves(self) -> bool:
        """Whether only messages came since the last update: what a parameter server waits for."""
        return not self._looping and self.now.tail and self.now.collectives > 0

    def _update_was_left(self, now: int) -> bool:
        """An optimizer raised, its closing mark never came: nothing is nested any more."""
        if self._in_backward or self.ledger.phase != layout.OPTIMIZER:
            return False
        while self.ledger.outer:
            self.ledger.leave(now)
        self._in_update = 0
        return True

    # --- for the fast path and the device timer -------------------------------------------------

    @property
    def may_have_turned(self) -> bool:
        """Whether the next mark may show that a turn has begun where the open piece did."""
        return self.begun and self.now.tail and not self.ledger.outer

    def at_rest(self, now: int) -> bool:
        """Whether a turn has just begun at `now`, and nothing before it is on the mind."""
        if not self.begun or self.now.start != now or any(self.ledger.booked):
            return False
        return not (self.pieces or self._held or self._cuts or self._unsure)

    def state(self) -> tuple[object, ...]:
        """All that decides what coming marks will mean to an engine at rest: no times."""
        ledger, now = self.ledger, self.now
        nested = (list(ledger.outer), ledger.phase)
        return *_DECIDING(self), set(self.training), *nested, now.loader, now.tail

    def twin(self, now: int, emit: Callable[[Step], None]) -> Steps:
        """A copy of this engine whose turn begins at `now`, which shares nothing with it."""
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
        """Moves an engine at rest, in `phase`, to a later turn that began in the same way."""
        self.now = Piece(now, before, loader=self.now.loader, tail=self.now.tail)
        self.ledger.phase, self.ledger.since = phase, now
