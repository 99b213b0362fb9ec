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


class Wish(NamedTuple):
    """`lines`: how many would show everything. `weight`: its part where not all get that."""

    lines: int
    weight: int


def shared(room: int, wishes: Sequence[Wish]) -> list[int]:
    """Lines for each: all that it wishes, or by weight as many as the others leave."""
    given = [0] * len(wishes)
    for _ in range(max(0, room)):
        hungry = [place for place, wish in enumerate(wishes) if given[place] < wish.lines]
        if not hungry:
            break
        given[min(hungry, key=lambda place: (given[place] + 1) / wishes[place].weight)] += 1
    return given


def arrange(screen: Screen[object], *, side_by_side: bool) -> None:
    """Give the panels their heights. `side_by_side`: the ranks and their steps."""
    head, host, greeting, gpus, ranks, heat, findings, details = (
        screen.query_one(f"#{name}", Panel)
        for name in ("head", "host", "greeting", "gpus", "ranks", "heat", "findings", "details")
    )
    above = head.wish + host.wish
    room = screen.size.height - above - FOOTER
    of_work = (
        [Wish(max(ranks.wish, heat.wish), RANKS + HEAT)]
        if side_by_side
        else [Wish(ranks.wish, RANKS), Wish(heat.wish, HEAT)]
    )
    wishes = [
        Wish(greeting.wish, GREETING),
        Wish(gpus.wish, GPUS),
        *of_work,
        Wish(findings.wish, FINDINGS),
    ]
    given = shared(room, wishes)
    left = room - sum(given)
    details.wanted = bool(findings.wish) and left >= LEAST_OF_DETAILS
    if findings.wish and not details.wanted:
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
