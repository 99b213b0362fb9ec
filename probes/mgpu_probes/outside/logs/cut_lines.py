"""A message whose end is lost because the text ends in the middle of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

LEAST_SHARE = 0.6
"""Share of a message's distinctive characters that must be left. A choice."""
LEAST_LEFT = 16
"""Least number of these characters: shorter beginnings are everywhere. A choice."""
LEAST_WORDS = 3
"""Words that must be left. A choice."""
_WORD = re.compile(r"[A-Za-z]{2,}")


@dataclass(frozen=True, slots=True)
class CutHead:
    """The distinctive text of a failure's message."""

    wanted: int
    """The number of its signature."""
    literal: str
    least: str
    """The beginning of `literal` that must be left."""


def cut_heads(heads: Iterable[tuple[int, str]]) -> Iterator[CutHead]:
    """The literals that are long enough to lose their end. `heads`: with their owners' numbers."""
    for wanted, literal in heads:
        least = literal[: max(LEAST_LEFT, ceil(LEAST_SHARE * len(literal)))]
        if len(least) < len(literal) and len(_WORD.findall(least)) >= LEAST_WORDS:
            yield CutHead(wanted, literal, least)


def find_cut_messages(line: str, heads: Iterable[CutHead]) -> Iterator[int]:
    """Of each literal whose beginning ends the line, its owner's number. Only a line that ends in
    the middle of a word is known to be cut."""
    line = line.rstrip()
    if not line[-1:].isalnum():
        return
    for head in heads:
        place = line.rfind(head.least, max(0, len(line) - len(head.literal)))
        left = line[place:]
        is_cut = place >= 0 and head.literal[len(left) : len(left) + 1].isalnum()
        if is_cut and head.literal.startswith(left):
            yield head.wanted
