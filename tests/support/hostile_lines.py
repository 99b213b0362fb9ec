"""Lines on which a search by a pattern has much to try: made of the pattern itself.

Each looks like a match as often and as long as possible: the texts between its repeats come many
times over, what a repeat takes comes without end, and the end of the match is missing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations

from tests.support.patterns import Char, Lookahead, Part, Repeat, Variant

MOST_CUTS = 6
MOST_BODIES = 2
LONGEST_PUMP = 300


def hostile_lines(variant: Variant, rng: random.Random, longest: int) -> Iterator[str]:
    """Lines of `longest` characters on which a search has much to try."""
    for line in _endless(variant, rng, longest):
        yield line[:longest]


def _endless(variant: Variant, rng: random.Random, longest: int) -> Iterator[str]:
    whole = _text(variant, rng)
    if whole:
        yield _filled(f"{whole[:-1]}\t", longest)
    cuts = [0, *(at for at, part in enumerate(variant) if isinstance(part, Repeat | Lookahead))]
    cuts = sorted({*rng.sample(cuts, min(MOST_CUTS, len(cuts))), 0, len(variant)})
    for start, end in combinations(cuts, 2):
        head, body = _text(variant[:start], rng), _text(variant[start:end], rng)
        yield head + _filled(body, longest)
        yield _filled(head, longest // 2) + _filled(body, longest)
        for later in cuts[cuts.index(end) + 1 :] if head else ():
            tail = _text(variant[end:later], rng)
            parts = (_filled(head, longest // 3), _filled(body, longest // 3))
            yield "".join(parts) + _filled(tail, longest)
    for at, part in enumerate(variant):
        if isinstance(part, Repeat):
            head, pump = _text(variant[:at], rng), _pump(part, variant[at + 1 :], rng)
            yield head + _filled(pump, longest)
            yield _filled(head + pump * min(part.most, LONGEST_PUMP), longest)
        elif isinstance(part, Lookahead):
            head = _text(variant[:at], rng)
            for ahead in rng.sample(part.bodies, min(MOST_BODIES, len(part.bodies))):
                yield from (head + line for line in _endless(ahead, rng, longest))


def _filled(text: str, length: int) -> str:
    return text * (length // len(text) + 1) if text else ""


def _pump(part: Repeat, after: Sequence[Part], rng: random.Random) -> str:
    """Text that the repeat takes, best such that what follows it would take, too."""
    if part.bodies:
        return _text(rng.choice(part.bodies), rng)
    follower = next((one for one in after if isinstance(one, Char | Repeat)), None)
    both = part.chars & follower.chars if follower else part.chars
    return _one_of(both or part.chars, rng)


def _text(parts: Iterable[Part], rng: random.Random) -> str:
    """A short text that they match."""
    made = ""
    for part in parts:
        if isinstance(part, Char):
            made += _one_of(part.chars, rng)
        elif isinstance(part, Repeat):
            count = max(part.least, min(1, part.most))
            made += "".join(
                _text(rng.choice(part.bodies), rng) if part.bodies else _one_of(part.chars, rng)
                for _ in range(count)
            )
    return made


def _one_of(chars: frozenset[str], rng: random.Random) -> str:
    return rng.choice(_in_order(chars)) if chars else ""


@cache
def _in_order(chars: frozenset[str]) -> list[str]:
    return sorted(chars)


def seconds(act: Callable[[], object], most: float) -> float:
    """Of the CPU. What was too long is done again: something else may have come between."""
    least = most
    for _ in range(3):
        began = time.process_time()
        act()
        least = time.process_time() - began
        if least <= most:
            break
    return least
