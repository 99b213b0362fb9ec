"""How high memory has climbed, and how large a batch there had been by then.

Peaks can be read only as the highest since the process began: to start them anew would change what
the training script itself reads. That is enough, as the highest peak belongs to the largest batch
where peaks rise with batches: each time that one of them has risen is a rung.
"""

from __future__ import annotations

_MOST = 32
"""Rungs that are kept; of more every second one is left out. Records become rare: in a million
batches of random sizes there are fourteen or so."""
_LEAST = 4 << 20
"""Bytes that a peak must have risen by: less is an allocator's rounding, not a batch."""
_LARGER = 0.02
"""And a batch, as a share."""

Rung = tuple[int, int, int, int]
"""Step; most samples and most tokens of a step up to it (0: unknown); bytes of the peak so far."""


class Ladder:
    """Of one kind of memory. Reads nothing itself."""

    def __init__(self) -> None:
        self.rungs: list[Rung] = []
        self._start()

    def _start(self) -> None:
        self.rungs.clear()
        self.samples = self.tokens = 0

    def saw(self, samples: int, tokens: int) -> None:
        """Steps were taken, the largest with so much data."""
        self.samples = max(self.samples, samples)
        self.tokens = max(self.tokens, tokens)

    def reached(self, step: int, peak: int) -> None:
        """The peak of all steps up to this one. A lower one than before: somebody reset it, and
        batches from before tell nothing any more."""
        if self.rungs and peak < self.rungs[-1][3]:
            self._start()
            return
        if self.rungs and not self._rose(peak):
            return
        self.rungs.append((step, self.samples, self.tokens, peak))
        if len(self.rungs) > _MOST:
            del self.rungs[1::2]

    def _rose(self, peak: int) -> bool:
        _, samples, tokens, before = self.rungs[-1]
        return (
            peak >= before + _LEAST
            or self.samples > samples * (1 + _LARGER)
            or self.tokens > tokens * (1 + _LARGER)
        )
