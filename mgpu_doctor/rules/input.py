"""Waiting for data: on one rank, or on all of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted
from mgpu_doctor.rules.loader import (
    SATURATED,
    Loader,
    cpu_use,
    how_to_load_faster,
    loader_of,
)
from mgpu_doctor.rules.rule import Rule
from mgpu_doctor.rules.straggler import MEASURED, THRESHOLDS, of_family, straggler_finding
from mgpu_doctor.rules.words import by_cost, percent, seconds

BOUND = 0.10
STRONG = 0.20
"""Input as a share of the step (the thresholds of TraceML's INPUT_BOUND, Apache-2.0)."""


def _straggler(measures: Measures) -> Iterable[Finding]:
    for one in of_family(measures, "input"):
        loader = loader_of(measures.rank(one.rank))
        now = "" if loader.workers is None else f" Its loader has num_workers={loader.workers}."
        share = (one.by_phase.get("input") or 0.0) / max(one.excess, 1e-12)
        yield straggler_finding(
            measures,
            one,
            code="straggler-input",
            what="its wait for data",
            phases=("input",),
            cause=f"Fetching a batch explains {percent(min(share, 1.0))} of this rank's gap: its "
            f"data, its storage or its loader is slower than the other ranks'.{now}",
            fixes=[
                Fix(
                    "load-in-background",
                    "Let batches be made ahead of time",
                    how_to_load_faster(loader, None),
                ),
                Fix(
                    "check-shard",
                    f"Compare rank {one.rank}'s shard and storage with the others'",
                    "Time `dataset[i]` on that host for its own indices: a slow disk, an uncached "
                    "shard or larger samples show there.",
                ),
            ],
        )


def _bound(measures: Measures) -> Iterable[Finding]:
    shares = measures.input_shares
    if not shares or measures.input_saved is None or not measures.step_seconds:
        return
    share = min(shares.values())
    if share < BOUND or measures.input_saved < BOUND / 2:
        return
    loader = _common_loader(measures)
    cpu = cpu_use(measures.case.host_samples)
    strong = share >= STRONG
    middle = float(np.median(list(shares.values())))
    source = "input phase of every rank after warm-up"
    evidence = [
        Evidence(
            "share of the step spent waiting for data, on the rank where it is least",
            share,
            "fraction",
            BOUND,
            source,
        ),
        Evidence("the same, on the median rank", middle, "fraction", BOUND, source),
    ]
    if loader.workers is not None:
        evidence.append(
            Evidence(
                "loader worker processes a rank",
                loader.workers,
                "processes",
                None,
                "birth certificate",
            )
        )
    if cpu is not None:
        evidence.append(
            Evidence(
                "use of the host's cores", cpu / 100, "fraction", SATURATED / 100, "host samples"
            )
        )
    saved = measures.input_saved
    yield Finding(
        code="input-bound",
        severity=by_cost(saved),
        confidence=0.95 if strong else 0.8,
        title=f"{'All ranks wait' if len(shares) > 1 else 'The training waits'} for data: "
        f"{percent(middle)} of every step "
        f"({seconds(middle * measures.step_seconds)})",
        cause=_cause(loader, cpu),
        victims=tuple(sorted(shares)),
        evidence=tuple(evidence),
        since_step=0,
        cost=Cost(step_fraction=saved, seconds_per_step=saved * measures.step_seconds),
        fixes=(
            Fix(
                "load-in-background",
                "Let batches be made ahead of time",
                how_to_load_faster(loader, cpu),
                Predicted(
                    1 - saved,
                    None,
                    "measured what-if: the same steps with no wait for "
                    "data; an upper bound, as workers need cores of their own",
                ),
            ),
        ),
    )


def _common_loader(measures: Measures) -> Loader:
    known = [loader_of(rank) for rank in measures.case.ranks]
    return next((one for one in known if one.workers is not None), Loader())


def _cause(loader: Loader, cpu: float | None) -> str:
    if loader.workers == 0:
        return "The loader has no workers (num_workers=0): each batch is made while training waits."
    if cpu is not None and cpu >= SATURATED:
        return f"The host's cores are {cpu:.0f} % busy: preparing data competes with training."
    if loader.workers is not None:
        ahead = "" if loader.prefetch is None else f", prefetch_factor={loader.prefetch}"
        return (
            f"The loader's workers cannot keep up (num_workers={loader.workers}{ahead}): too few, "
            "or the dataset or its storage is slow."
        )
    return "Making a batch takes long and does not overlap with training; why was not measured."


RULES = (
    Rule(
        code="straggler-input",
        family="slow",
        summary="A rank gets its data later than the others on every step, and they wait for it.",
        measured=MEASURED.format(
            phases="This code is given where input explains 80 % of the excess, or more than "
            "anything else."
        ),
        thresholds=THRESHOLDS,
        fixes="More loader workers and prefetching; equal shards; faster or cached storage.",
        examine=_straggler,
        needs=("stragglers",),
        replaces=("straggler-compute", "straggler-other"),
    ),
    Rule(
        code="input-bound",
        family="slow",
        summary="All ranks wait for data in every step.",
        measured="The input phase (from asking for a batch to having it) as a share of the step, "
        "on the rank where it is least; what it costs is a what-if over the same steps.",
        thresholds="From 10 % of the step on every rank, stronger from 20 % (TraceML's "
        "INPUT_BOUND); warning if a step without it would be 5 % shorter.",
        fixes="Loader workers that stay (`num_workers`, `persistent_workers`), prefetching, "
        "caching or decoding beforehand; if the cores are busy, more cores or less work a sample.",
        examine=_bound,
        needs=("input_shares",),
    ),
)
