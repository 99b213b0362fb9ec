"""The ranks of a job in groups: by host, pipeline stage or process group. Pure.

What a rank is shown by is its own work of the newest steps beyond the median of the other ranks, as
in the heat map of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from mgpu_doctor.analysis.statistics.medians import median_of_known, row_medians
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Culprit, Diagnosis, RankSummary
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.live.frame import HOST
from mgpu_doctor.live.step_heatmap import Heatmap
from mgpu_doctor.report.verdict import leading

NEWEST_STEPS = 20
"""Measured steps that are used."""
LEAST_STEPS = 3
"""Measured steps of a rank, below which its own work counts as not measured."""
STAGE = "stage"
KINDS = {
    "data": "data-parallel group",
    "mesh_dp": "data-parallel group",
    "tensor": "tensor-parallel group",
    "mesh_tp": "tensor-parallel group",
    "context": "context-parallel group",
    "mesh_cp": "context-parallel group",
    "expert": "expert-parallel group",
    "mesh_ep": "expert-parallel group",
    "pipeline": "pipeline",
    "mesh_pp": "pipeline",
}
"""What the probe's or DeviceMesh's names of groups stand for; other names are shown as they are."""
MOST_GROUPINGS = 8
STOPPED = ("hung", "dead", "missing")
NOT_WORK = ("wait", "communication")

RankName: TypeAlias = "tuple[int | None, int | None]"
"""Its number, and its pid if that is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """Ranks that belong together. Seconds are per step, medians over its ranks; None: unknown."""

    name: str
    places: tuple[int, ...]
    """Of its ranks in `Diagnosis.ranks`."""
    own: float | None
    wait: float | None
    excess: float | None
    """The largest of its ranks."""
    last: float | None
    """Share of the newest steps, 0..1, in which one of its ranks came last to the collective."""
    stopped: int
    """Ranks that are hung, missing, or failed."""
    blamed: bool
    """Whether the leading finding blames one of its ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    by: str
    """`HOST`, `STAGE`, or what the process groups are."""
    groups: tuple[RankGroup, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RankMap:
    groupings: tuple[Grouping, ...]
    """By host first."""
    excess: tuple[float | None, ...]
    """Of each rank of `Diagnosis.ranks`: median own work beyond the other ranks, as a share of
    theirs; None: not measured."""
    steps: int
    """Steps that were compared; 0: none."""
    why: str | None = None
    """Why nothing was compared."""

    def grouping(self, by: str) -> Grouping:
        """Returns this grouping, or the one by host if there is no such."""
        return next((each for each in self.groupings if each.by == by), self.groupings[0])


def map_ranks(diagnosis: Diagnosis, heat: Heatmap | str | None) -> RankMap | None:
    """Returns the map; None if no rank has joined. `heat`: the newest steps, or why there are
    none."""
    ranks = diagnosis.ranks
    if not ranks:
        return None
    excess, last, steps = _recent(ranks, heat)
    blamed = _blamed(diagnosis)

    def group(name: str, places: Sequence[int]) -> RankGroup:
        own = [ranks[place] for place in places]
        measured = [value for place in places if (value := excess[place]) is not None]
        return RankGroup(
            name=name,
            places=tuple(places),
            own=median_of_known([own_work(rank) for rank in own]),
            wait=median_of_known([rank.phases.get("wait") for rank in own]),
            excess=max(measured, default=None),
            last=sum(last[place] for place in places) if measured else None,
            stopped=sum(map(has_failed, own)),
            blamed=name in blamed or any(_name(rank) in blamed for rank in own),
        )

    groupings = tuple(
        Grouping(by, tuple(group(name, places) for name, places in members.items()))
        for by, members in _divisions(diagnosis)
    )
    return RankMap(groupings, excess, steps, heat if isinstance(heat, str) else None)


def own_work(rank: RankSummary) -> float | None:
    """Returns the rank's own work in seconds per step, as far as measured; None if it contains
    waits that no hook sees."""
    if rank.unseen_waits:
        return None
    known = [
        seconds
        for phase, seconds in rank.phases.items()
        if seconds is not None and phase not in NOT_WORK
    ]
    return sum(known) if known else None


def has_failed(rank: RankSummary) -> bool:
    """Returns whether it is hung or missing, or ended with an error."""
    return rank.state in STOPPED or bool(rank.signal or rank.exit_code)


def _recent(
    ranks: Sequence[RankSummary], heat: Heatmap | str | None
) -> tuple[tuple[float | None, ...], list[float], int]:
    """Returns each rank's excess, the share of steps in which it came last, and the number of
    steps."""
    excess: list[float | None] = [None] * len(ranks)
    last = [0.0] * len(ranks)
    if not isinstance(heat, Heatmap):
        return tuple(excess), last, 0
    measured = ~np.isnan(heat.excess).all(axis=0)
    newest = heat.excess[:, measured][:, -NEWEST_STEPS:]
    steps = newest.shape[1]
    place_of = {rank.rank: place for place, rank in enumerate(ranks)}
    places = [place_of.get(number) for number in heat.ranks]
    counts = np.sum(~np.isnan(newest), axis=1)
    known = np.nan_to_num(newest, nan=-np.inf)
    late = known.max(axis=0) > 0  # else nobody came last
    slowest = np.bincount(np.argmax(known[:, late], axis=0), minlength=len(places))
    medians = row_medians(newest) if steps else counts
    for row, place in enumerate(places):
        if place is not None and counts[row] >= LEAST_STEPS:
            excess[place] = float(medians[row])
            last[place] = float(slowest[row]) / steps
    return tuple(excess), last, steps


def _blamed(diagnosis: Diagnosis) -> set[RankName | str]:
    """Returns the ranks and hosts that the leading finding blames."""
    lead = leading(diagnosis)
    culprits = lead.culprits if lead else ()
    return {
        culprit.host if culprit.rank is None is culprit.pid and culprit.host else _name(culprit)
        for culprit in culprits
    }


def _name(who: RankSummary | Culprit) -> RankName:
    return who.rank, who.pid if who.rank is None else None


def _divisions(diagnosis: Diagnosis) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Yields the ways to divide the ranks: what the groups are, and the places in each."""
    hosts: dict[str, list[int]] = {}
    for place, rank in enumerate(diagnosis.ranks):
        hosts.setdefault(rank.host, []).append(place)
    yield HOST, hosts
    place_of = {rank.rank: place for place, rank in enumerate(diagnosis.ranks)}
    stages = [[place_of[rank] for rank in stage if rank in place_of] for stage in diagnosis.stages]
    if stages:
        yield STAGE, {f"stage {number}": places for number, places in enumerate(stages)}
    yield from islice(_process_groups(diagnosis.case.ranks, place_of), MOST_GROUPINGS)


def _process_groups(
    ranks: Sequence[Rank], place_of: Mapping[int | None, int]
) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Yields the names of process groups of which each rank is in exactly one, and there are
    several."""
    members: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for rank in ranks:
        for group in rank.metadata.groups:
            name = group.kind or group.name
            if name and group.ranks and len(group.ranks) > 1 and rank.rank in place_of:
                listed = members.setdefault(name, {}).setdefault(group.ranks, [])
                listed.append(place_of[rank.rank])
    for name, groups in members.items():
        places = [place for listed in groups.values() for place in listed]
        if len(groups) > 1 and sorted(places) == sorted(place_of.values()):
            ordered = sorted(groups.items())
            yield (
                KINDS.get(name, name),
                {format_ranks(numbers, limit=4): listed for numbers, listed in ordered},
            )
