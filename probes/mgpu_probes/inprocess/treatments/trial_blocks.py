"""In which steps of a trial a treatment is on, where it can be switched while the job runs.

After the warm-up, blocks of equally many steps follow each other. Off and on follow the Thue-Morse
sequence, A B B A B A A B …: each four blocks cancel a machine that drifts evenly. A second run
inverts the sequence, B A A B …, so that each step is made once with and once without the treatment.
All ranks count the same steps, so they switch in the same step.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TrialBlocks:
    """Blocks of `length` steps from step `first` on. `inverted`: on where it would be off."""

    def __init__(self, first: int, length: int, inverted: bool) -> None:
        self.first = first
        self.length = length
        self.inverted = inverted

    def is_on(self, step: int) -> bool:
        """Whether the treatment is on in this step."""
        if step < self.first:
            return False
        return is_treated_block((step - self.first) // self.length) is not self.inverted

    def next_start(self, step: int) -> int:
        """The first step of the block after the one of this step."""
        if step < self.first:
            return self.first
        return step + self.length - (step - self.first) % self.length


class Switch:
    """Whether a treatment is on now, and whom to tell when that changes."""

    def __init__(self, blocks: TrialBlocks | None) -> None:
        self._blocks = blocks
        self.is_on = blocks is None
        self.is_scheduled = blocks is not None
        self.on_change: list[Callable[[], None]] = []
        """Called after each change of `is_on`."""

    def step_begins(self, step: int) -> int:
        """Switches for this step; returns the step in which to call this again."""
        blocks = self._blocks
        if blocks is None:  # never called without a schedule
            return step + 1
        if blocks.is_on(step) is not self.is_on:
            self.is_on = not self.is_on
            for changed in self.on_change:
                changed()
        return blocks.next_start(step)


def is_treated_block(number: int) -> bool:
    """Whether the treatment is on in this block: the Thue-Morse sequence."""
    return bool(bin(number).count("1") & 1)


def read_blocks(text: str | None) -> TrialBlocks | None:
    """The blocks by the text of the environment variable, `[first, length, inverted]`; None: there
    are none, or the text is wrong."""
    try:
        first, length, inverted = json.loads(text or "")
        if int(first) < 0 or int(length) < 1:
            return None
        return TrialBlocks(first, length, bool(inverted))
    except (ValueError, TypeError):
        return None
