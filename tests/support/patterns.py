"""Regular expressions taken apart, to estimate how much work a search can be.

Python's `re` tries one way to match after the other. A repeat that can also match what follows it
may end in many places, and each of them is tried with all that comes after. So the work for one
character of a line is about the product of all such choices. A search is linear where this number
does not grow with the line.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as codes
    from re import _parser as parser
else:
    import sre_constants as codes
    import sre_parse as parser

MOST_VARIANTS = 400
ALPHABET = frozenset([*map(chr, range(32, 127)), *"\t\n\x1b\x9bé"])
"""One character of each kind that patterns tell apart, and all of ASCII that is printed."""
WORD = frozenset(char for char in ALPHABET if re.match(r"\w", char))
_CLASSES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


@dataclass(frozen=True)
class Char:
    """One character of a set."""

    chars: frozenset[str]


@dataclass(frozen=True)
class Repeat:
    """Something `least` to `most` times: characters of a set, or one of several bodies."""

    least: int
    most: int
    chars: frozenset[str]
    first: frozenset[str]
    """What it can begin with."""
    bodies: tuple[Variant, ...] = ()
    """Empty: one character at a time."""


@dataclass(frozen=True)
class Lookahead:
    """A lookahead, which matches no characters."""

    bodies: tuple[Variant, ...]


@dataclass(frozen=True)
class Edge:
    """`^`, `$` or a word's border, by the name that the parser gives it, or a look behind."""

    name: str
    chars: frozenset[str] = frozenset()
    """That it does not allow before it."""


Part = Char | Repeat | Lookahead | Edge
Variant = tuple[Part, ...]
"""A pattern without alternatives: one choice for each of them."""


@cache
def variants(pattern: str | bytes, flags: int, longest: int) -> list[Variant]:
    """What the pattern can be. Of very many, a sample. `longest`: of a line, in characters."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    flags &= re.IGNORECASE | re.VERBOSE | re.DOTALL | re.MULTILINE
    tree: Any = parser.parse(text, flags)
    return _variants(tree, flags, longest)


def work(variant: Variant, longest: int) -> float:
    """Steps for each character of a line of `longest` characters, at worst. About."""
    places = 1 if _is_anchored(variant) else longest
    return (longest + _steps(variant, places, longest)) / longest


def _steps(variant: Variant, places: int, longest: int) -> float:
    """`places`: where a match may begin. After each choice it goes on from as many places as the
    repeat may end in, `times` as often as the repeat was come to. Text that must come between two
    repeats divides both: it cannot stand everywhere (`least`), and where the second repeat does not
    match it, no character is looked at twice (`apart`)."""
    steps, times, least, apart = 0.0, 1.0, 0, False
    between: list[frozenset[str]] = []
    for at, part in enumerate(variant):
        if isinstance(part, Char):
            between.append(part.chars)
            least += 1
            continue
        tries = times * max(1.0, places / max(1, least))
        if isinstance(part, Lookahead):
            steps += tries * max(_steps(body, 1, longest) + len(body) for body in part.bodies)
        elif isinstance(part, Edge):
            apart = _begins_run(part, variant[at + 1 :])
        elif isinstance(part, Repeat):
            span = min(longest, part.most * _longest_body(part, longest))
            apart = apart or any(part.chars.isdisjoint(chars) for chars in between)
            passes = times * max(places, span) if apart else tries * span
            steps += passes if at + 1 < len(variant) else span
            ends = _ends(part, variant[at + 1 :], span)
            if ends > 1:
                times, places = (times, max(places, span)) if apart else (tries, ends)
                least, between = 0, []
            elif part.least:
                between.append(part.first)
            apart = False
        least += _least(part)
    return steps


def _begins_run(edge: Edge, after: Variant) -> bool:
    """Whether the repeat after it can begin only where its characters begin."""
    if not after or not isinstance(after[0], Repeat):
        return False
    return after[0].chars <= (WORD if edge.name == "AT_BOUNDARY" else edge.chars)


def _ends(part: Repeat, after: Variant, span: int) -> int:
    """In how many places a repeat may end so that what follows it can still match."""
    for follower in after:
        if isinstance(follower, Char):
            if part.chars.isdisjoint(follower.chars):
                return 1
        elif isinstance(follower, Repeat):
            if not part.chars.isdisjoint(follower.first):
                break
            if follower.least:
                return 1
        elif isinstance(follower, Edge) and (
            follower.name.startswith("AT_END")
            or (follower.name == "AT_BOUNDARY" and part.chars <= WORD)
        ):
            return 1
    else:
        return 1
    body = min((sum(map(_least, body)) for body in part.bodies), default=1)
    return (span - part.least * body) // max(1, body) + 1


def is_ambiguous(part: Repeat) -> bool:
    """Whether a repeat of longer texts can divide the same characters among them in several ways:
    two of these texts begin alike, or no character of one tells where the next begins."""
    if any(_first(one) & _first(other) for one, other in combinations(part.bodies, 2)):
        return True
    return any(not _has_separator(body) for body in part.bodies if _repeats(body))


def repeats_of(parts: Iterable[Part]) -> Iterator[Repeat]:
    """All repeats of a variant, also those inside others."""
    for part in parts:
        if isinstance(part, Repeat):
            yield part
        if isinstance(part, Repeat | Lookahead):
            for body in part.bodies:
                yield from repeats_of(body)


def _repeats(body: Variant) -> list[Repeat]:
    return [part for part in body if isinstance(part, Repeat) and part.most > 1]


def _has_separator(body: Variant) -> bool:
    inside = frozenset().union(*(part.chars for part in _repeats(body)))
    return any(isinstance(part, Char) and part.chars.isdisjoint(inside) for part in body)


def _is_anchored(variant: Variant) -> bool:
    return bool(variant) and variant[0] in (Edge("AT_BEGINNING"), Edge("AT_BEGINNING_STRING"))


def _least(part: Part) -> int:
    if isinstance(part, Repeat):
        return part.least * min((sum(map(_least, body)) for body in part.bodies), default=1)
    return 1 if isinstance(part, Char) else 0


def _longest_body(part: Repeat, longest: int) -> int:
    return max(
        (
            sum(
                one.most * _longest_body(one, longest) if isinstance(one, Repeat) else 1
                for one in body
            )
            for body in part.bodies
        ),
        default=1,
    )


def _variants(items: Iterable[tuple[Any, Any]], flags: int, longest: int) -> list[Variant]:
    found: list[Variant] = [()]
    for code, value in items:
        choices = _choices(str(code), value, flags, longest)
        found = [(*before, *after) for before in found for after in choices]
        if len(found) > MOST_VARIANTS:
            found = random.Random(0).sample(found, MOST_VARIANTS)
    return found


def _choices(code: str, value: Any, flags: int, longest: int) -> list[Variant]:
    """What one node of the parser's tree can be."""
    chars = _chars(code, value, flags)
    if chars is not None:
        return [(Char(chars),)]
    if code == "AT":
        return [(Edge(str(value)),)]
    if code == "BRANCH":
        return [variant for branch in value[1] for variant in _variants(branch, flags, longest)]
    if code in ("SUBPATTERN", "ATOMIC_GROUP"):
        _, added, dropped, inside = value if code == "SUBPATTERN" else (None, 0, 0, value)
        return _variants(inside, (flags | added) & ~dropped, longest)
    if code in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, most, inside = value
        most = longest if most == codes.MAXREPEAT else int(most)
        return _repeated(int(least), most, _variants(inside, flags, longest))
    if code in ("ASSERT", "ASSERT_NOT"):
        direction, inside = value
        bodies = tuple(_variants(inside, flags, longest))
        return [(Lookahead(bodies) if direction > 0 else _behind(code, bodies),)]
    raise NotImplementedError(f"{code} in a pattern")


def _behind(code: str, bodies: tuple[Variant, ...]) -> Edge:
    single = [part.chars for body in bodies for part in body if isinstance(part, Char)]
    return Edge(code, frozenset().union(*single) if code == "ASSERT_NOT" else frozenset())


def _repeated(least: int, most: int, bodies: list[Variant]) -> list[Variant]:
    single = [body[0].chars for body in bodies if len(body) == 1 and isinstance(body[0], Char)]
    if len(single) == len(bodies):
        chars = frozenset().union(*single)
        return [(Repeat(least, most, chars, chars),)]
    if most == 1:
        return [*([()] if least == 0 else []), *bodies]
    inside = [part for body in bodies for part in body if isinstance(part, Char | Repeat)]
    first = frozenset().union(*(_first(body) for body in bodies))
    chars = frozenset().union(*(part.chars for part in inside))
    return [(Repeat(least, most, chars, first, tuple(bodies)),)]


def _first(body: Variant) -> frozenset[str]:
    chars: frozenset[str] = frozenset()
    for part in body:
        if isinstance(part, Char):
            return chars | part.chars
        if isinstance(part, Repeat):
            chars |= part.first
            if part.least:
                return chars
    return chars


def _chars(code: str, value: Any, flags: int) -> frozenset[str] | None:
    """The characters that a node stands for; None where it is not for a single one."""
    if code == "ANY":
        return ALPHABET if flags & re.DOTALL else ALPHABET - {"\n"}
    if code == "IN":
        negated = bool(value) and str(value[0][0]) == "NEGATE"
        chars = frozenset().union(*(_chars(str(one), of, flags) or () for one, of in value))
        return ALPHABET - chars if negated else chars
    if code in ("LITERAL", "NOT_LITERAL"):
        chars = frozenset(chr(value))
        if flags & re.IGNORECASE:
            chars = frozenset((chr(value).lower(), chr(value).upper()))
        return ALPHABET - chars if code == "NOT_LITERAL" else chars
    if code == "RANGE":
        return frozenset(char for char in ALPHABET if value[0] <= ord(char) <= value[1])
    if code == "CATEGORY":
        return _chars_of_class(_CLASSES[str(value)])
    return None


@cache
def _chars_of_class(pattern: str) -> frozenset[str]:
    return frozenset(char for char in ALPHABET if re.match(pattern, char))
