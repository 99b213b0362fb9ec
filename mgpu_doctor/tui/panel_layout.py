"""Shares the main screen's height among its panels: none is cut while there is room."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache
from typing import NamedTuple

from mgpu_doctor.tui.panel import Panel

FOOTER = 1
LEAST_SPARE = 6
"""Lines that the others have to leave for a panel that gets only such lines."""
OF_THE_MAP = ("map", "findings", "details")
"""Tables that stay when the map of ranks is alone."""


class Wish(NamedTuple):
    """What a panel needs. `lines`: enough to show everything. `weight`: its share if there are too
    few. `least`: with fewer it is hidden. `first`: lines that it gets before the rest is shared."""

    lines: int
    weight: int
    least: int = 1
    first: int = 0


def shared(room: int, wishes: Sequence[Wish]) -> list[int]:
    """Returns the lines of each panel: all that it needs, or its share by weight of what is
    left."""
    given = [wish.first for wish in wishes]
    for _ in range(max(0, room - sum(given))):
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
        enough = (a >= min(b.least, b.lines) for a, b in zip(given, wished, strict=True))
        if sum(given) <= max(0, room) and all(enough):
            return tuple(given)
        there = [place for place, wish in enumerate(wished) if wish.lines]
        least = min(there, key=lambda place: wished[place].weight)
        wished[least] = wished[least]._replace(lines=0, first=0)


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
    findings = named.get("findings")

    def give(available: int, *, spare: bool, compact: Container[Panel]) -> dict[Panel, int]:
        """Returns the lines of each of these panels, if some are `compact`."""

        def wish(panel: Panel) -> int:
            if map_only and panel.id not in OF_THE_MAP:
                return 0
            return panel.wish if panel in compact else panel.full_wish

        wishes = {
            panel: Wish(
                lines := wish(panel),
                room.weight,
                room.least,
                min(room.least, lines) if spare and panel in compact else 0,
            )
            for panel, room in rooms
            if room.spare is spare
        }
        if ranks and beside and not spare:
            right, left = wishes.pop(beside), wishes[ranks]
            most = max(left.lines, right.lines)
            wishes[ranks] = Wish(most, left.weight + right.weight, left.least)
        return dict(zip(wishes, useful(available, tuple(wishes.values())), strict=True))

    def share(available: int, *, spare: bool) -> dict[Panel, int]:
        """Returns the lines of each of these panels. Those that would get too few become compact,
        until none does."""
        compact: list[Panel] = []
        given = give(available, spare=spare, compact=compact)
        while small := [
            panel
            for panel, lines in given.items()
            if panel.has_compact and panel not in compact and lines < panel.full_wish
        ]:
            for panel in small:
                panel.compact = True
            compact += small
            given = give(available, spare=spare, compact=compact)
        for panel in given:
            panel.compact = panel in compact
        return given

    available = height - in_full - FOOTER
    given = share(available, spare=False)
    rest = available - sum(given.values())
    if ranks and beside:
        given[beside] = given[ranks]
    if findings:
        for panel, room in rooms:
            if room.spare:
                panel.wanted = bool(findings.wish) and rest >= LEAST_SPARE
        more = share(rest, spare=True)
        given |= more
        if given[findings] and not any(more.values()):
            given[findings] += rest
    for panel, lines in given.items():
        panel.take(lines)
