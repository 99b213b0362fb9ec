"""Shares the main screen's height among its panels: none is cut while there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from mgpu_doctor.tui.panel import Panel

FOOTER = 1
OF_THE_MAP = ("map", "findings")
"""Tables that stay when the map of ranks is alone."""


class Wish(NamedTuple):
    """What a panel needs. `lines`: enough to show everything. `weight`: its share if there are too
    few. `least`: with fewer it is hidden."""

    lines: int
    weight: int
    least: int = 1


def shared(room: int, wishes: Sequence[Wish]) -> list[int]:
    """Returns the lines of each panel: all that it needs, or its share by weight of what is
    left."""
    given = [0] * len(wishes)
    for _ in range(max(0, room)):
        hungry = [place for place, wish in enumerate(wishes) if given[place] < wish.lines]
        if not hungry:
            break
        given[min(hungry, key=lambda place: (given[place] + 1) / wishes[place].weight)] += 1
    return given


@lru_cache(8)
def useful(room: int, wishes: tuple[Wish, ...]) -> tuple[int, ...]:
    """Returns the lines of each panel, none below its minimum: while one would be, the panel with
    the least weight gets no lines."""
    wished = list(wishes)
    while True:
        given = shared(room, wished)
        if all(a >= min(b.least, b.lines) for a, b in zip(given, wished, strict=True)):
            return tuple(given)
        there = [place for place, wish in enumerate(wished) if wish.lines]
        least = min(there, key=lambda place: wished[place].weight)
        wished[least] = wished[least]._replace(lines=0)


def arrange(
    panels: Sequence[Panel], height: int, *, side_by_side: bool, map_only: bool = False
) -> None:
    """Sets the panels' heights. `height`: lines of the screen. `side_by_side`: the rank table and
    the heat map are next to each other, so both get the height of the taller one. `map_only`: the
    map of ranks takes the place of the other tables."""
    rooms = [(panel, panel.room) for panel in panels if panel.room is not None]
    named = {panel.id: panel for panel in panels}
    ranks, heat = named.get("ranks"), named.get("heat")  # panels of a job come with it
    beside = heat if side_by_side else None
    if ranks and heat:  # side by side, a rank and its steps are on one line
        heat.lower(max(0, ranks.stays - heat.stays) if beside and heat.stays else 0)
    in_full = sum(panel.wish for panel in panels if panel.room is None)
    available = height - in_full - FOOTER

    def share(lines: Callable[[Panel], int]) -> dict[Panel, int]:
        """Returns the lines of each panel, if `lines` says how many it needs."""
        wishes = {
            panel: Wish(0 if map_only and panel.id not in OF_THE_MAP else lines(panel), *room)
            for panel, room in rooms
            if room.weight
        }
        if ranks and beside:
            right, left = wishes.pop(beside), wishes[ranks]
            most = max(left.lines, right.lines)
            wishes[ranks] = Wish(most, left.weight + right.weight, left.least)
        return dict(zip(wishes, useful(available, tuple(wishes.values())), strict=True))

    given = share(lambda panel: panel.full_wish)
    for panel, lines in given.items():
        panel.compact = lines < panel.full_wish
    if any(panel.compact for panel in given):
        given = share(lambda panel: panel.wish)
    rest = available - sum(given.values())
    if ranks and beside:
        given[beside] = given[ranks]
    for panel, room in rooms:
        if not room.weight:
            findings = named["findings"]
            panel.wanted = bool(findings.wish) and rest >= room.least
            if given[findings] and not panel.wanted:
                given[findings] += rest
            given[panel] = rest
    for panel, lines in given.items():
        panel.take(lines)
