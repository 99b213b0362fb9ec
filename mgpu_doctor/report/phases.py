"""How the phases of a step are drawn: a letter and a colour each, the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mgpu_probes.inprocess.layout import PHASES


class Look(NamedTuple):
    letter: str
    colour: str
    """Told apart by colour-blind readers (Okabe and Ito, 2008), greys for what is not work."""
    dark: bool = False
    """Whether light text stands on it."""


LOOKS: Mapping[str, Look] = {
    "input": Look("i", "#e69f00"),
    "transfer": Look("t", "#cc79a7"),
    "forward": Look("f", "#56b4e9"),
    "backward": Look("b", "#0072b2", dark=True),
    "wait": Look("·", "#c8c8c8"),
    "communication": Look("c", "#d55e00", dark=True),
    "optimizer": Look("o", "#009e73", dark=True),
    "checkpoint": Look("k", "#f0e442"),
    "evaluation": Look("e", "#8c6bb1", dark=True),
    "other": Look("-", "#808080", dark=True),
}


def known(phases: Mapping[str, float | None]) -> dict[str, float]:
    """The measured phases that took time, in the order of a step."""
    return {name: value for name in PHASES if (value := phases.get(name)) and value > 0}


def cells(values: Sequence[float], scale: float, width: int) -> list[int]:
    """Cells for each value when `scale` is `width` cells; the largest remainders are rounded up,
    so that a bar is as long as its sum."""
    if scale <= 0 or width <= 0:
        return [0] * len(values)
    exact = [value / scale * width for value in values]
    whole = [int(part) for part in exact]
    missing = min(width, round(sum(exact))) - sum(whole)
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: max(0, missing)]:
        whole[i] += 1
    return whole
