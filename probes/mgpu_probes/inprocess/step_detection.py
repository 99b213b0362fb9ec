"""Groups pieces of time into turns of the training loop: the part of the step engine that decides
where a step begins and ends.

A step is one turn of the loop, as the user would count it: from the first batch fetch (or forward
pass) after an update to the next one. The surest sign of a turn is an optimizer's update. Without
one, a backward pass, a batch fetch together with a collective, or a recurring collective serves.
Turns before the sign is known are kept and emitted afterwards. Uses no clock and no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from .phase_ledger import Ledger
from .step_segments import (
    BACKWARD,
    CALLS,
    FETCHED,
    MARKED,
    UPDATE,
    Call,
    Facts,
    Piece,
    Step,
    joined,
    level_of,
)


def recurring_turns(pieces: list[Piece], repeats: int) -> tuple[list[list[Piece]], list[Piece]]:
    """Splits pieces into complete turns, and the remaining pieces of the next turn.

    A turn is the shortest pattern of call sites that repeats at the end of `pieces` `repeats`
    times. It begins with the call that is first by file and line, so that all ranks of the same
    program cut at the same place, whatever is slow on one of them.
    """
    calls = [piece.call for piece in pieces]
    for period in range(1, len(calls) // repeats + 1):
        span = period * repeats
        if calls[-period:] * repeats != calls[-span:]:
            continue
        start = len(calls) - span
        while start > 0 and calls[start - 1] == calls[start - 1 + period]:
            start -= 1
        pattern = calls[-period:]
        turned = min(
            range(period), key=lambda at: [c or ("", 0, "") for c in pattern[at:] + pattern[:at]]
        )
        start += (len(calls) - period + turned - start) % period
        whole = [pieces[at : at + period] for at in range(start, len(pieces) - period + 1, period)]
        return whole, pieces[start + period * len(whole) :]
    return [], pieces


PATIENCE = 64
"""Turns that are kept while a surer sign may still come: a gradient accumulation of up to this many
batches before the first update is one step."""
PATIENCE_WITHOUT_OPTIMIZER = 3
MOST_UPDATES_A_BATCH = 8
"""An optimizer that steps at least this often per fetched batch steps once per turn."""
CALM_TURNS = 3
CALLS_TO_BELIEVE = 8
CALLS_TO_BELIEVE_AT_THE_END = 3
"""How often a pattern of collectives must have repeated to count as a loop."""
UNSURE_NS, UNSURE_TURNS = 1_000_000_000, 1024
"""Collectives alone count as a loop after this time, or this many turns. Until then they may be the
setup of a script, one call per weight. Large models have hundreds of weights; sending them takes
longer only if they are large."""
CALLS_KEPT = 512
CALLS_BETWEEN_LOOKS = 4
MOST_PIECES = 4096
IN_BACKWARD = -1
"""The sign of optimizers that step while a backward pass runs."""


def no_facts() -> Facts:
    """Counters for an engine that has none."""
    return (0, 0, 0, 0)


class StepDetector:
    """Collects pieces and emits steps. `now`: the open piece; `pieces`: the turn so far; `level`:
    the sign by which steps are recognised."""

    def __init__(
        self, ledger: Ledger, emit: Callable[[Step], None], facts: Callable[[], Facts] = no_facts
    ) -> None:
        self.ledger = ledger
        self.emit = emit
        self.facts = facts
        self.level = 0
        self.optimizers_exist = False
        self.training: set[int] = set()
        self.now = Piece(ledger.since, (0, 0, 0, 0))
        self.pieces: list[Piece] = []
        self._level = 0
        self._fetched = self._called_one = False
        self.begun = False
        self._held: list[list[Piece]] = []
        self._cuts: list[int] = []
        self._pattern: list[Call | None] = []
        self._unsure: list[Step] = []
        self._sure = False
        self._only_sign = self._alone = 0
        self._last_loader = 0
        self._waited_for: frozenset[int] = frozenset()
        self._repeats = self._calm = 0
        self._led_by_updates = False
        self._in_backward = self._in_update = 0
        self._waits = False
        self._updated_in_backward = self._stepped = self._looping = self._derived = False
        self._marked_depth = -1
        """How many phases were open when the program began one that it marks itself; -1: none."""
        self._due: tuple[int, int] | tuple[()] = ()
        """Level and sign of a turn that hooks saw within that phase."""

    def _loops(self) -> None:
        """Notes that the loop does more than collectives; the collectives before belong to no
        step."""
        if not self._looping:
            self._looping = True
            self._unsure = []
            if self.level <= CALLS:
                self.begun = False

    def _open(self, now: int, *, loader: int = 0, tail: bool = False) -> None:
        if not self.begun:
            self.begun = True
            self.ledger.cut(now)
            self._keep([])
            before = self.facts()
        else:
            before = self.now.after
        self.now = Piece(now, before, loader=loader, tail=tail)

    def _close(self, now: int) -> None:
        piece = self.now
        piece.end = now
        piece.booked = self.ledger.cut(now)
        piece.after = self.facts()
        if piece.loader and not piece.level and self.pieces and self.pieces[-1].absorbs(piece):
            return
        self.pieces.append(piece)
        self._level = max(self._level, piece.level)
        self._fetched |= piece.fetches > 0
        self._called_one |= piece.collectives > 0
        if len(self.pieces) > MOST_PIECES:
            # Not a training loop (but hours of inference, say): no piece so far was a step. A loop
            # that marked its steps has ended.
            del self.pieces[: MOST_PIECES // 2]
            self._cuts = []
            self.level = 0 if self.level == MARKED else self.level

    def _sign(self, now: int, level: int, sign: int) -> None:
        """Notes a sign of a turn: what follows may belong to the next turn."""
        self.now.level = level
        self.now.sign = sign
        self._close(now)
        if level == UPDATE and self.level < UPDATE:
            accumulated = [turn for turn in self._held if level_of(turn) == BACKWARD]
            self._keep([piece for turn in accumulated for piece in turn] + self.pieces)
            self._held, self._cuts, self.level = [], [], UPDATE
        if level == UPDATE and self._cuts and self._repeated(sign):
            self._on_repeat()
        self._open(now, tail=True)

    def _repeated(self, sign: int) -> bool:
        return any(
            piece.level == UPDATE and piece.sign == sign for piece in self.pieces[: self._cuts[-1]]
        )

    def _on_repeat(self) -> None:
        if self._led_by_fetches():
            self._repeats += 1
            if self._repeats < MOST_UPDATES_A_BATCH:
                return
            self._led_by_updates, self._calm = True, 0
        self._split()

    def _led_by_fetches(self) -> bool:
        return not self._led_by_updates and self._fetched

    def _candidate(self) -> None:
        """Notes that the piece which opens now may begin a new turn."""
        if not self._is_turn():
            return
        if not self._led_by_fetches() and (self._alone >= CALM_TURNS or self._level < UPDATE):
            self._finish(self.pieces)
            self._keep([])
            self._cuts = []
        else:
            self._cuts.append(len(self.pieces))

    def _split(self) -> None:
        """Finishes all turns but the last: a turn ends where an optimizer steps for the second
        time."""
        if self._led_by_fetches():
            if not self._repeats:
                self._calm = min(self._calm + 1, CALM_TURNS)
            self._repeats, self._cuts = 0, []
            return
        if self._led_by_updates:
            self._calm = 0 if self._cuts else min(self._calm + 1, CALM_TURNS)
            self._led_by_updates = self._calm < CALM_TURNS
        start, seen = 0, set[int]()
        bounds = [0, *self._cuts, len(self.pieces)]
        rest: list[int] = []
        for begin, end in pairwise(bounds):
            signs = {p.sign for p in self.pieces[begin:end] if p.level == UPDATE}
            if seen & signs:
                self._finish(self.pieces[start:begin])
                start, seen, rest = begin, set(), []
            elif begin > start:
                rest.append(begin)
            seen |= signs
        self._keep(self.pieces[start:])
        self._cuts = [cut - start for cut in rest]
        self._repeats = 0

    def _is_turn(self) -> bool:
        level = self._level or (FETCHED if self._fetched and self._called_one else 0)
        return level >= max(self.level, FETCHED)

    def _keep(self, pieces: list[Piece]) -> None:
        """Makes these pieces the turn so far."""
        self.pieces = pieces
        self._level, self._fetched, self._called_one = 0, False, False
        for piece in pieces:
            self._level = max(self._level, piece.level)
            self._fetched |= piece.fetches > 0
            self._called_one |= piece.collectives > 0

    def _finish(self, pieces: list[Piece]) -> None:
        """Emits these pieces as a turn, or keeps them while a surer sign may still come."""
        level = level_of(pieces)
        self._cuts, self._repeats = [], 0
        signs = {piece.sign for piece in pieces if piece.level == UPDATE}
        self._alone = min(self._alone + 1, CALM_TURNS) if signs == {self._only_sign} else 0
        self._only_sign = signs.pop() if len(signs) == 1 else 0
        if self.level == level:
            self._emit_turn(pieces)
            return
        self._held = [turn for turn in self._held if level_of(turn) >= level]
        self._held.append(pieces)
        enough = PATIENCE if self.optimizers_exist else PATIENCE_WITHOUT_OPTIMIZER
        if len(self._held) >= (enough if level >= BACKWARD else PATIENCE):
            self.level = level
            self._emit_held()

    def _emit_held(self) -> None:
        held, self._held = self._held, []
        for turn in held:
            self._emit_turn(turn)

    def _finish_marked(self, now: int) -> None:
        """Finishes the turn that ends at `now` because the program says so. What went before the
        first such turn belongs to it, except collectives alone, which are the script's setup."""
        if self.level < MARKED:
            if not self._looping:
                self.begun = False
            self.pieces = [piece for turn in (*self._held, self.pieces) for piece in turn]
            self._held, self._cuts, self._unsure, self._pattern = [], [], [], []
            self.level, self._looping, self._repeats = MARKED, True, 0
        if self.begun:
            self._close(now)
            pieces = self.pieces
            self._keep([])
            step = joined(pieces, MARKED, self.training)
            self.emit(step._replace(level=level_of(pieces) or CALLS))
        self._open(now)

    def _emit_turn(self, pieces: list[Piece]) -> None:
        self.emit(joined(pieces, level_of(pieces) or CALLS, self.training))

    def _called(self, now: int, call: Call) -> None:
        """Handles a collective while there was no other sign of a loop yet."""
        if not self.begun:
            self._open(now)
        self.now.call = call
        self._close(now)
        self._open(now)
        if self._pattern == [piece.call for piece in self.pieces[-len(self._pattern) :]]:
            self._emit_calls(self.pieces)
            self._keep([])
        elif len(self.pieces) % CALLS_BETWEEN_LOOKS == 0:
            self._look_for_pattern(CALLS_TO_BELIEVE)

    def _look_for_pattern(self, repeats: int) -> None:
        whole, rest = recurring_turns(self.pieces[-CALLS_KEPT:], repeats)
        for turn in whole:
            self.level = CALLS
            self._pattern = [piece.call for piece in turn]
            self._emit_calls(turn)
        self._keep(rest)

    def _emit_calls(self, pieces: list[Piece]) -> None:
        """Emits a turn of collectives alone, once it is certain that they are the loop."""
        step = joined(pieces, CALLS, self.training)
        if self._sure:
            self.emit(step)
            return
        self._unsure.append(step)
        lasted = step.end - self._unsure[0].end
        if lasted >= UNSURE_NS or len(self._unsure) >= UNSURE_TURNS:
            self._emit_unsure()

    def _emit_unsure(self) -> None:
        self._sure = True
        unsure, self._unsure = self._unsure, []
        for step in unsure:
            self.emit(step)
