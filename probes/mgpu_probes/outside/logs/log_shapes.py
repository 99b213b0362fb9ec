"""Selects the lines of a block that need a search, which makes 100 MB per second possible.

A log repeats a few sentences with other numbers. Without digits, progress bars and the characters
between words, such lines are equal byte for byte: their shape. C code compares shapes. Only a new
shape is split into words, which C code looks up again: one of them must contain a needle's longest
run of letters. So a needle costs time per new word, not per line (measured, benchmarks/logs.py:
300 MB/s and more for logs of ranks; plain searches for 400 needles read 12 MB/s, one regular
expression of all of them 1.4 MB/s)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_DROPPED = b"0123456789.+-#=*%\0" + bytes(range(128, 256))
_BETWEEN = b"\t,:;|/\\()[]{}<>'\"`_!?@$^&~"
_TO_BLANKS = bytes.maketrans(_BETWEEN + b"\r\x08\x0b\x0c", b" " * len(_BETWEEN) + b"\n\n\n\n")
LINE_ENDS = bytes.maketrans(b"\r\x08\x0b\x0c", b"\n\n\n\n")
"""Progress bars go back by carriage returns, Keras' older ones by backspaces."""
MOST_SHAPES = 100_000
MOST_WORDS = 200_000
MOST_SHAPE_BYTES = 16 << 20
PIECE = 1000
LEAST_LETTERS = 3
"""Letters that a needle's longest run must have: shorter runs occur everywhere."""
_EVERYWHERE = frozenset(
    b"connection device error Error failed Failed gradient loaded memory model rank shape size "
    b"tensor timeout training warning worker".split()
)
"""Words of healthy logs: needles are indexed by their other words."""

_PROGRESS = re.compile(
    rb"(?:^|[^A-Za-z])(?:g?steps?|epochs?|iters?|iterations?|batch(?:es)?|lr|loss|samples?|tokens?|"
    rb"accuracy|acc|perplexity|ppl)[^A-Za-z]{1,12}\d|\d ?(?:it/s|s/it)(?:[^A-Za-z]|$)",
    re.IGNORECASE,
)
"""Progress in a line: a number after a word such as `step`."""
_NO_PROGRESS = re.compile(
    rb'File "|^\s*frame #|Error|line \d|[Rr]etry|timed? ?out|Assertion|\.(?:cu|cc|cpp|h):\d'
    rb"|\w\(|[a-z_]\[\d|srun: |slurmstepd: |['\"]--?[a-z]"
)
"""Tracebacks, stacks, error messages, code (`batch[0]`, `loss = f(x)`), Slurm's job steps, and the
arguments of a command (`'--steps', '20'`)."""


class Shapes:
    """Caches shapes and words across blocks and logs: share one among all of them."""

    def __init__(self, needles: Sequence[str]) -> None:
        """Raises ValueError for a needle without a run of letters."""
        self._needles = [_shape(needle.encode()).strip() for needle in needles]
        runs = [max(needle.split() or [b""], key=_telling) for needle in self._needles]
        for needle, run in zip(needles, runs, strict=True):
            if len(run) < LEAST_LETTERS:
                raise ValueError(f"the needle {needle!r} needs {LEAST_LETTERS} letters in a row")
        self._inside = [frozenset(needle.split()[1:-1]) for needle in self._needles]
        self._of_run = {
            run: tuple(number for number, other in enumerate(runs) if other == run) for run in runs
        }
        self._any_run = re.compile(b"|".join(map(re.escape, self._of_run)) or b"(?!)")
        self._words: set[bytes] = set()
        self._telling: dict[bytes, tuple[int, ...]] = {}
        self._cold: set[bytes] = set()
        self._hot: dict[bytes, tuple[int, ...]] = {}
        self._counted: set[bytes] = set()
        self._counts_on: set[bytes] = set()
        self._kept = self._kept_counted = 0

    def of(self, block: bytes) -> list[bytes]:
        """The shapes of a block's pieces, as its line ends and carriage returns divide it."""
        return _shape(block).split(b"\n")

    def hot(self, shapes: Sequence[bytes]) -> list[tuple[int, tuple[int, ...]]]:
        """The positions of pieces whose shapes contain needles, and the needles' numbers."""
        many = len(self._cold) + len(self._hot) > MOST_SHAPES or len(self._words) > MOST_WORDS
        if many or self._kept > MOST_SHAPE_BYTES:
            for known in (self._cold, self._hot, self._words, self._telling):
                known.clear()
            self._kept = 0
        distinct = set(shapes)
        fresh = distinct - self._cold - self._hot.keys()
        if fresh:
            self._learn(fresh)
        if self._hot.keys().isdisjoint(distinct):
            return []
        return [(at, self._hot[shape]) for at, shape in enumerate(shapes) if shape in self._hot]

    def held(self, text: bytes) -> tuple[int, ...]:
        """The needles that a text without line ends holds, by their numbers."""
        return next((held for _, held in self.hot([_shape(text)])), ())

    def progress(self, shapes: Sequence[bytes], pieces: Sequence[bytes]) -> list[int]:
        """The positions of pieces that report a step, epoch or loss with a number."""
        if len(self._counted) > MOST_SHAPES or self._kept_counted > MOST_SHAPE_BYTES:
            self._counted.clear()
            self._counts_on.clear()
            self._kept_counted = 0
        fresh = set(shapes) - self._counted
        if fresh:
            self._counted |= fresh
            self._kept_counted += sum(map(len, fresh))
            example = dict(zip(shapes, pieces, strict=True))
            self._counts_on |= {
                shape for shape in fresh if reports_progress(example[shape][:PIECE])
            }
        if self._counts_on.isdisjoint(shapes):
            return []
        return [at for at, shape in enumerate(shapes) if shape in self._counts_on]

    def _learn(self, fresh: set[bytes]) -> None:
        for shape, held in self._holding(fresh):
            self._hot[shape] = held
        self._cold |= fresh - self._hot.keys()
        self._kept += sum(map(len, fresh))

    def _holding(self, fresh: set[bytes]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """The shapes that contain needles, and which: filtered by words, then searched."""
        text = b"\n".join(fresh)
        words = set(text.split())
        self._learn_words(words)
        telling = self._telling.keys() & words
        maybe = {number for word in telling for number in self._telling[word]}
        there = [
            number
            for number in sorted(maybe)
            if self._inside[number] <= words and self._needles[number] in text
        ]
        for shape in fresh if there else ():
            if held := tuple(number for number in there if self._needles[number] in shape):
                yield shape, held

    def _learn_words(self, words: set[bytes]) -> None:
        fresh = words - self._words
        self._words |= fresh
        for word in fresh:
            if self._any_run.search(word):
                self._telling[word] = tuple(
                    number
                    for run, numbers in self._of_run.items()
                    if run in word
                    for number in numbers
                )


def _telling(run: bytes) -> tuple[bool, int]:
    return (run not in _EVERYWHERE, len(run))


def reports_progress(piece: bytes) -> bool:
    """Whether the line reports a step, epoch or loss with a number."""
    return bool(_PROGRESS.search(piece)) and not _NO_PROGRESS.search(piece)


def _shape(text: bytes) -> bytes:
    return text.translate(_TO_BLANKS, _DROPPED)
