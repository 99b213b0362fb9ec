"""Changes a log in the ways in which people pass logs on: wrapped, indented, quoted, labelled,
cut."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain

WIDTHS = (80, 100, 120)
CUT_SHARE = 0.3
"""The share of the telling line that is lost if the text is cut off there."""


def wrap(text: str, width: int) -> str:
    """As copied from a terminal: cut at the width, blanks at a line's end are lost."""
    return "\n".join(chain.from_iterable(_cut(line, width) for line in text.split("\n")))


def _cut(line: str, width: int) -> list[str]:
    pieces = [line[at : at + width].rstrip() for at in range(0, len(line), width)]
    return pieces or [""]


def fill(text: str, width: int) -> str:
    """As mail programs and editors break lines: between words."""
    lines = text.split("\n")
    return "\n".join(
        textwrap.fill(line, width, drop_whitespace=True, break_on_hyphens=False)
        if len(line) > width
        else line
        for line in lines
    )


def label(text: str, prefix: str) -> str:
    """Each line behind a prefix."""
    return "\n".join(f"{prefix}{line}" if line else line for line in text.split("\n"))


def stamp(text: str) -> str:
    """Each line behind the time at which a collector of logs received it."""
    return "\n".join(
        f"2026-03-04T05:{n // 60 % 60:02}:{n % 60:02}.125Z {line}"
        for n, line in enumerate(text.split("\n"))
    )


def cut_head(text: str, telling: int) -> str:
    """From the telling line on. `telling`: its index."""
    return "\n".join(text.split("\n")[telling:])


def cut_tail(text: str, telling: int) -> str:
    """Up to somewhere in the telling line."""
    lines = text.split("\n")
    line = lines[telling]
    return "\n".join([*lines[:telling], line[: len(line) - int(CUT_SHARE * len(line))]])


Change = Callable[[str], str]
CHANGES: Mapping[str, Change] = {
    **{f"wrapped at {width}": partial(wrap, width=width) for width in WIDTHS},
    "filled to 80": lambda text: fill(text, 80),
    "indented": lambda text: label(text, "    "),
    "wrapped and indented": lambda text: label(wrap(text, 80), "      "),
    "quoted": lambda text: label(text, "> "),
    "filled and quoted": lambda text: label(fill(text, 76), "> "),
    "labelled by rank": lambda text: label(text, "[rank3]: "),
    "stamped": stamp,
    "of a pod": lambda text: label(text, "[pod/train-worker-3/pytorch] "),
    "stamped and wrapped": lambda text: stamp(wrap(text, 100)),
}
"""Whole texts, changed."""
CUTS: Mapping[str, Callable[[str, int], str]] = {"head cut": cut_head, "tail cut": cut_tail}
"""Texts of which a part is lost."""
