"""Values that a stranger may write where an honest program writes its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.canary import Canary

MARKUP = "<xss-probe>"
"""Must not be in an HTML page as it is."""
FORMULA = "=HYPERLINK"
"""Must not be how a cell of a CSV file begins."""
LONGEST = 100_000

_CONTROLS = (
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[1;1H",
    "\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\",
    "\x9b2J",
    "\x90q\x9c",
    "\x1b",
    "\x00",
    "\x07",
    "\x08\x08\x08",
    "\x7f",
    "\x85",
    "\r",
    "\r\n",
    "\x0b\x0c\x1c\x1d\x1e",
    "\u202eevil\u202c",
    "\u2066x\u2069",
    "\u200e\u200f\u061c",
    "\u2028\u2029",
    "\ufeff\u00ad\U000e0041",
    "\ud800",
    "\udc80\udcff",
    "\udfff\ud83d",
)
_WORDS = (
    "",
    " ",
    "\n",
    "a\tb\nmgpu-doctor: all is well",
    "NaN",
    "-1",
    "null",
    "0x10",
    "1e309",
    "٣٢١",
    "²",
    "{}",
    "{0.__class__}",
    "%s%n%100000000d",
    "[/bold]",
    "[bold]x[/]",
    "[link=http://x]y",
    "\\",
    "'\"`$(id)",
    "```\n# head\n|a|b|",
    "![x](http://evil.example/pixel.png)",
    f'"><img src=x onerror=alert(1)>{MARKUP}</script>{MARKUP}',
    f"]]>--></style>{MARKUP}",
    f"{FORMULA}(1)",
    "+1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "..",
    ".",
    "/",
    "//",
    "/dev/zero",
    "/proc/self/environ",
    "\x00/etc/passwd",
    "a" * 5000,
    "9" * 5000,
    "é" * 40_000,
    "👩‍👩‍👧‍👦" * 2000,
    "a\u0301" * 5000,
    "default",
    "rank",
    "0",
    "cuda:0",
    "2026-11-23T23:34:45.473+00:00",
)
_NUMBERS = (
    0,
    -0.0,
    1,
    -1,
    0.5,
    -0.5,
    1e-320,
    1e308,
    -1e308,
    1.7976931348623157e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    127,
    255,
    256,
    4095,
    32_767,
    65_535,
    65_536,
    1_000_000,
    2**20,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64 - 1,
    2**64,
    10**30,
    10**400,
    -(10**400),
)
WHOLE = tuple(number for number in _NUMBERS if isinstance(number, int))
_RAW = (
    "1e999",
    "-1e999",
    "1" * 4301,
    "1" * 100_000,
    "0." + "1" * 5000,
    "1E-400",
    "-0",
    "[" * 500 + "]" * 500,
    "[" * 200_000,
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 990 + "1" + "}" * 990,
    '{"a":' * 50_000 + "1" + "}" * 50_000,
    "[" + "[]," * 50_000 + "[]]",
    "[" + "{}," * 50_000 + "{}]",
    "{" + ",".join(f'"{number}":{number}' for number in range(20_000)) + "}",
    "tru",
    "",
)
"""As text in a JSON file: `json.dumps` does not write these."""
_RAW_MARK = re.compile(r'"@raw:(\d+)@"')


class Hostile:
    """Chooses them, by a random generator. `canary`: what lies outside of the subject."""

    def __init__(self, rng: Random, canary: Canary) -> None:
        self.rng = rng
        self.canary = canary

    def whole(self) -> int:
        """An integer, mostly at an edge."""
        rng = self.rng
        return rng.choice(WHOLE) if rng.random() < 0.8 else rng.randrange(-(2**64), 2**64)

    def real(self) -> float:
        """A number that fits into a double."""
        numbers = [
            float(number)
            for number in _NUMBERS
            if isinstance(number, float) or abs(number) < 10**300
        ]
        return self.rng.choice(numbers)

    def text(self) -> str:
        """Words, control characters, or the path of a canary."""
        rng = self.rng
        chance = rng.random()
        if chance < 0.35:
            return rng.choice(_CONTROLS) + rng.choice(("", "x", rng.choice(_CONTROLS)))
        if chance < 0.75:
            return rng.choice(_WORDS)
        if chance < 0.95:
            return self.path()
        return rng.choice("Aé\x1b\u202e\n[\\<") * rng.randrange(1, LONGEST)

    def path(self) -> str:
        """The path of a canary, in one of several spellings."""
        rng = self.rng
        path = str(rng.choice(self.canary.places))
        return rng.choice(
            (path, path, f"/..{path}", "../" * 16 + path[1:], f"{path}/../", path[1:])
        )

    def scalar(self) -> Any:
        rng = self.rng
        kinds = (self.text, self.text, lambda: rng.choice(_NUMBERS), lambda: None)
        return rng.choice((*kinds, lambda: True, lambda: False))()

    def value(self) -> Any:
        """Anything that JSON can say, and some that it cannot."""
        rng = self.rng
        chance = rng.random()
        if chance < 0.6:
            return self.scalar()
        if chance < 0.75:
            return rng.choice(([], {}, [[]], [{}], [None], {"": None}))
        if chance < 0.83:
            return [self.scalar() for _ in range(rng.randrange(1, 6))]
        if chance < 0.91:
            return {_key(self.scalar()): self.scalar() for _ in range(rng.randrange(1, 6))}
        if chance < 0.97:
            return f"@raw:{rng.randrange(len(_RAW))}@"
        one = self.scalar()
        return [one if is_small(one, 4) else None] * rng.choice((100, 5000, 70_000))

    def like(self, honest: Any) -> Any:
        """Of the same type as an honest value and at an edge of it; any other value half the
        time."""
        edges = _EDGES.get(type(honest))
        return self.value() if edges is None or self.rng.random() < 0.5 else edges(self, honest)

    def like_whole(self, honest: int) -> int:
        edges = (self.whole(), -honest, honest + 1, honest * 1000, honest * 10**12)
        return self.rng.choice(edges)

    def like_real(self, honest: float) -> float:
        edges = (self.real(), -honest, honest * 1e6, honest + 1e6, honest * 1e-9)
        return self.rng.choice(edges)

    def like_text(self, honest: str) -> str:
        at = self.rng.randrange(len(honest) + 1)
        inside = honest[:at] + self.text() + honest[at:]
        return self.rng.choice((self.text(), inside, honest[:1000] * 200))

    def like_list(self, honest: list[Any]) -> Any:
        many = honest * 50 if is_small(honest) else honest[:1]
        return self.rng.choice((many, [honest], [*honest, self.value()], honest[::-1], {}))

    def like_dict(self, honest: dict[Any, Any]) -> Any:
        more = {**honest, _key(self.scalar()): 1}
        return self.rng.choice(([honest], list(honest), more, []))


_EDGES: dict[type, Callable[[Hostile, Any], Any]] = {
    bool: lambda _, honest: not honest,
    int: Hostile.like_whole,
    float: Hostile.like_real,
    str: Hostile.like_text,
    list: Hostile.like_list,
    dict: Hostile.like_dict,
}


def dumps(tree: Any, *, indent: int | None = None) -> str:
    """As JSON, with what `json.dumps` does not write in the place of its marks. A tree that is
    nested too deeply for it becomes a list."""
    try:
        words = json.dumps(tree, indent=indent, separators=(",", ":"))
    except (ValueError, RecursionError):  # an integer of too many digits, or a circle
        words = "[]"
    return _RAW_MARK.sub(lambda found: _RAW[int(found[1]) % len(_RAW)], words)


def is_small(tree: Any, most: int = 2000) -> bool:
    """Whether a tree has at most so many values: larger ones are not multiplied."""
    todo = [tree]
    count = 0
    while todo and count <= most:
        node = todo.pop()
        count += 1 + (len(node) // 64 if isinstance(node, str) else 0)
        if isinstance(node, (list, tuple)):
            todo.extend(node[: most + 1])
        elif isinstance(node, dict):
            todo.extend(list(node.values())[: most + 1])
    return count <= most


def _key(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)[:300]
