"""Messages that are broken over lines: by a terminal's width, a mail program, an indentation.

It is not certain where a line was broken, so each run of lines is joined in three ways: with
nothing after lines as wide as the widest and a blank after narrower ones (a terminal cuts at its
width, and a blank there is lost), with nothing, and with blanks."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mgpu_probes.outside.logs.log_shapes import Shapes

LEAST_WIDTH = 20
"""Characters of a line from which it may have been broken: a shorter one ended by itself."""
LEAST_TERMINAL, LEAST_CUT, CUT_SHARE = 60, 3, 0.04
"""Least columns of a terminal, lines of exactly its width, and their share, if it cut a text."""
MOST_LINES = 16
"""Most lines over which one message is broken."""
LOOK_BEHIND = 3
LOOK_AHEAD = 1600
MOST_WIDTH = 400
"""Characters of a line from which no terminal or mail program broke it."""
MOST_PLACES = 8
"""Most places at which a literal is looked up in one run of lines."""
MOST_SEARCHES = 500
"""Literals looked up in joined lines of one log: anyone may write a log that holds all of them."""


Label = tuple[int | None, int | None]
"""Rank and local rank."""


@dataclass(frozen=True, slots=True)
class Physical:
    """A line as it was read. `width`: of all of it; `text`: without label and time stamp."""

    number: int
    text: str
    width: int
    label: Label


@dataclass(frozen=True, slots=True)
class Joined:
    """Lines as one text. `starts`: where each begins in it."""

    text: str
    starts: Sequence[int]
    lines: Sequence[Physical]

    def message(self, sought: Sought) -> BrokenMessage | None:
        """The first one that spans a break."""
        for place in self._places(sought.literal):
            begin, end = place, place + len(sought.literal)
            values: Mapping[str, str | None] = {}
            if sought.pattern is not None:
                line = bisect_right(self.starts, place) - 1
                behind = self.starts[max(0, line - LOOK_BEHIND)]
                found = sought.pattern.search(self.text, behind, place + LOOK_AHEAD)
                if found is None:
                    continue
                begin, end, values = found.start(), found.end(), found.groupdict()
            first = self._first_line(begin, end)
            if first is not None:
                after = bisect_right(self.starts, end - 1)
                until = self.starts[after] if after < len(self.starts) else len(self.text)
                text = self.text[self.starts[first] : until]
                whole = sought.pattern is not None
                last = self.lines[after - 1].number
                following = self.lines[after].text if after < len(self.lines) else ""
                return BrokenMessage(
                    sought.wanted, self.lines[first], last, text, following, values, whole
                )
        return None

    def _places(self, literal: str) -> Iterator[int]:
        place = -1
        for _ in range(MOST_PLACES):
            place = self.text.find(literal, place + 1)
            if place < 0:
                return
            yield place

    def _first_line(self, start: int, end: int) -> int | None:
        """None where the text between is of one line, or of lines too short to have been broken."""
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, max(start, end - 1)) - 1
        broken = self.lines[first:last]
        if not 0 < len(broken) <= MOST_LINES or min(line.width for line in broken) < LEAST_WIDTH:
            return None
        return first


def breaks_of(widths: Sequence[int]) -> list[str | None]:
    """For each line of a text, what a terminal removed after it: nothing or a blank. None: the
    line ended there, as all lines do if no terminal cut the text."""
    width = max(widths, default=0)
    cut = widths.count(width)
    if width < LEAST_TERMINAL or cut < max(LEAST_CUT, CUT_SHARE * len(widths)):
        return [None] * len(widths)
    lost: dict[int, str] = {width: "", width - 1: " "}
    return [lost.get(each) for each in widths]


def runs_of(lines: Iterable[Physical]) -> Iterator[list[Physical]]:
    """Neighbouring lines that one process may have printed; another label ends a run."""
    run: list[Physical] = []
    for line in lines:
        if not line.text.strip() or line.width > MOST_WIDTH:
            continue  # the gap in the numbers ends the run
        nobody = line.label == (None, None)
        if run and line.number - run[-1].number <= 1 and (nobody or line.label == run[0].label):
            run.append(line)
            continue
        if len(run) > 1:
            yield run
        run = [line]
    if len(run) > 1:
        yield run


def joined_ways(run: Sequence[Physical]) -> Iterator[Joined]:
    """The ways in which a run of lines may have been one text."""
    wide = max(line.width for line in run)
    widest = max(len(line.text) for line in run)
    yield _join(
        [
            line.text
            if wide == line.width or len(line.text) == widest
            else f"{line.text.rstrip()} "
            for line in run
        ],
        run,
    )
    bare = [line.text.strip() for line in run]
    yield _join(bare, run)
    yield _join([f"{text} " for text in bare], run)


def _join(texts: Sequence[str], run: Sequence[Physical]) -> Joined:
    return Joined("".join(texts), [0, *accumulate(map(len, texts))][:-1], run)


@dataclass(frozen=True, slots=True)
class BrokenMessage:
    """A message found in joined lines."""

    wanted: int
    """The index of what was searched for."""
    first: Physical
    last: int
    """The number of its last line."""
    text: str
    """From where its first line begins to the end of its last one."""
    following: str
    """The next line, or nothing."""
    values: Mapping[str, str | None]
    whole: bool
    """By its pattern; else by its head alone."""

    @property
    def is_complete(self) -> bool:
        """Whether no other way to join the lines can tell more."""
        return self.whole and None not in self.values.values()

    def says_more_than(self, other: BrokenMessage) -> bool:
        return (self.whole, self._filled()) > (other.whole, other._filled())

    def _filled(self) -> int:
        return sum(value is not None for value in self.values.values())


@dataclass(frozen=True, slots=True)
class Sought:
    """What is searched for: a literal that must be there, and the pattern that must match; None:
    the literal alone is enough."""

    wanted: int
    literal: str
    pattern: re.Pattern[str] | None


def find_broken_messages(
    lines: Iterable[Physical], sought: Sequence[Sought], shapes: Shapes, known: Container[int]
) -> Iterator[BrokenMessage]:
    """The messages in joined lines that no single line holds: each once per label, by the pattern
    if it matches, else by the head.

    `shapes`: knows the literals of `sought`, by the same numbers. `known`: what was found before.
    """
    found: dict[tuple[int, Label], BrokenMessage] = {}
    left = MOST_SEARCHES
    for run in runs_of(lines):
        read: set[int] = set()  # lines that an earlier way of joining gave a meaning
        for joined in joined_ways(run):
            now: set[int] = set()
            for number in shapes.held(joined.text.encode("utf-8", "replace")):
                if number >= len(sought) or sought[number].wanted in known:
                    continue
                key = (sought[number].wanted, run[0].label)
                known_so_far = found.get(key)
                by_head = sought[number].pattern is None
                if known_so_far is not None and (by_head or known_so_far.is_complete):
                    continue
                if left == 0:
                    break
                left -= 1
                message = joined.message(sought[number])
                if message is None:
                    continue
                tells_more = known_so_far is None or message.says_more_than(known_so_far)
                if tells_more and (known_so_far is not None or message.first.number not in read):
                    found[key] = message
                    now |= {message.first.number} if message.whole else set()
            read |= now
    yield from found.values()
