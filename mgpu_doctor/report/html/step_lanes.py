"""The steps of ranks over time, one lane each, as data that the page's script draws.

A step is drawn as its phases, one after the other, from its begin; what the phases do not explain
is `other`. Steps of which only the wall time is known are left out. A step that a device timed ends
where its host noted the end, which may be earlier (not seen on a GPU). Without the script, lanes
stay hidden: the heat map shows the same ranks.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Rank
from mgpu_doctor.formatting import format_count

MOST_LANES = 16
MOST_STEPS = 1200
"""Steps of a lane: 16 lanes are 1.1 MB of text."""
AROUND = 150
"""Steps that are kept on each side of a lane's longest one, and at its begin."""
OTHER = PHASES.index("other")
LANE_PHASES = PHASES


def render_lanes(ranks: Sequence[Rank], culprits: frozenset[int], start: float) -> str:
    """Returns the lanes of at most 16 ranks as markup, culprits among them; empty if no rank has
    steps. `start`: begin of the page's time axis, in seconds since the epoch."""
    known = [rank for rank in ranks if rank.rank is not None and len(rank.steps)]
    chosen = sorted(known, key=lambda rank: rank.rank not in culprits)[:MOST_LANES]
    lanes = [
        lane
        for rank in sorted(chosen, key=lambda rank: rank.rank or 0)
        if (lane := _lane(rank, start, guilty=rank.rank in culprits))
    ]
    if not lanes:
        return ""
    left_out = len(known) - len(lanes)
    note = f" {format_count(left_out, 'more rank')} not drawn." if left_out else ""
    return (
        "\n".join(lanes)
        + '<p class="reading soft small">A step is its phases one after the other, in the colours '
        f"of the table above, whatever their order was. Point at one to read it.{note}</p>"
    )


def _lane(rank: Rank, start: float, *, guilty: bool) -> str:
    steps = on_one_clock(rank).steps
    if not len(steps):
        return ""
    kept = _kept(steps["wall_ns"].astype(np.int64))
    walls = steps["wall_ns"][kept] * 1e-9
    begins = steps["end_ns"][kept] * 1e-9 + rank.clock_offset - walls - start
    phases = np.nan_to_num(steps["phases"][kept].astype(np.float64))
    phases[:, OTHER] += np.maximum(0.0, walls - phases.sum(axis=1))
    arrays: Iterable[npt.NDArray[np.generic]] = (
        begins.astype("<f8"),
        phases.astype("<f4"),
        steps["step"][kept].astype("<i4"),
    )
    data = base64.b64encode(b"".join(array.tobytes() for array in arrays)).decode()
    name = f"rank {rank.rank}"
    return (
        f'<div class="plot lane{" guilty" if guilty else ""}"><span class="label small">'
        f'{"▸ " if guilty else ""}{escape(name)}</span><span class="scale"></span>'
        f'<canvas data-name="{escape(name)}" data-steps="{data}" role="img" '
        f'aria-label="The steps of {escape(name)} over time"></canvas></div>'
    )


def _kept(walls: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Returns the indices of the steps to draw: the first, those around the longest, the last."""
    count = len(walls)
    if count <= MOST_STEPS:
        return np.arange(count)
    longest = AROUND + int(walls[AROUND:].argmax())
    wanted = np.zeros(count, bool)
    wanted[:AROUND] = wanted[longest - AROUND : longest + AROUND] = True
    wanted[wanted.sum() - MOST_STEPS :] = True
    return np.flatnonzero(wanted)
