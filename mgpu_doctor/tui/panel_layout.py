"""How the panels of the main screen share its height: none is cut while there is room for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.screen import Screen

from mgpu_doctor.tui.panel import Panel

FOOTER = 1
LEAST_OF_DETAILS = 6
"""Lines left over from which the selected finding is shown in full below the others."""
GPUS, RANKS, HEAT, FINDINGS = 5, 7, 3, 3
"""Lines of a screen of 80 by 24 where everybody wants more; on others they grow alike."""
GREETING = 1
"""Beside GPUS: three lines of 80 by 24, which are its keys, where there are many GPUs."""
LEAST_OF_TABLE, LEAST_OF_RANKS, LEAST_OF_LIST = 3, 4, 2
"""Lines of a panel down to its first row: title, legend, head. With fewer it shows nothing."""


class Wish(NamedTuple):
    """`lines`: how many would show everything. `weight`: its part where not all get that. `least`:
    with fewer it has nothing to show."""

    lines: int
    weight: int
    least: int = 1


def shared(room: int, wishes: Sequence[Wish]) -> list[int]:
    """Lines for each: all that it wishes, or by weight as many as the others leave."""
    given = [0] * len(wishes)
    for _ in range(max(0, room)):
        hungry = [place for place, wish in enumerate(wishes) if given[place] < wish.lines]
        if not hungry:
            break
        given[min(hungry, key=lambda place: (given[place] + 1) / wishes[place].weight)] += 1
    return given


def useful(room: int, wishes: Sequence[Wish]) -> list[int]:
    """The same, but nobody gets too little to show anything: while somebody would, the one with
    the least weight of all gives way."""
    wished = list(wishes)
    while True:
        given = shared(room, wished)
        if all(a >= min(b.least, b.lines) for a, b in zip(given, wished, strict=True)):
            return given
        there = [place for place, wish in enumerate(wished) if wish.lines]
        least = min(there, key=lambda place: wished[place].weight)
        wished[least] = wished[least]._replace(lines=0)


def arrange(screen: Screen[object], *, side_by_side: bool) -> None:
    """Give the panels their heights. `side_by_side`: the ranks and their steps."""
    head, host, greeting, gpus, ranks, heat, findings, details = (
        screen.query_one(f"#{name}", Panel)
        for name in ("head", "host", "greeting", "gpus", "ranks", "heat", "findings", "details")
    )
    # Beside each other a rank and its steps stand on one line.
    heat.lower(max(0, ranks.stays - heat.stays) if side_by_side and heat.stays else 0)
    above = head.wish + host.wish
    room = screen.size.height - above - FOOTER
    of_work = (
        [Wish(max(ranks.wish, heat.wish), RANKS + HEAT, LEAST_OF_RANKS)]
        if side_by_side
        else [Wish(ranks.wish, RANKS, LEAST_OF_RANKS), Wish(heat.wish, HEAT, LEAST_OF_TABLE)]
    )
    wishes = [
        Wish(greeting.wish, GREETING),
        Wish(gpus.wish, GPUS, LEAST_OF_TABLE),
        *of_work,
        Wish(findings.wish, FINDINGS, LEAST_OF_LIST),
    ]
    given = useful(room, wishes)
    left = room - sum(given)
    details.wanted = bool(findings.wish) and left >= LEAST_OF_DETAILS
    if given[-1] and not details.wanted:
        given[-1] += left
    for panel, lines in (
        (greeting, given[0]),
        (gpus, given[1]),
        (ranks, given[2]),
        (heat, given[-2]),
        (findings, given[-1]),
    ):
        panel.take(lines)
    details.take(left)
