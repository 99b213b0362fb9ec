"""Copies from host to device that training waits for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from mgpu_probes.inprocess.layout import TRANSFER

from mgpu_doctor.analysis.cost.what_if import saved_without_phase
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.phase_shares import phase_shares
from mgpu_doctor.case.device_times import BoundBy, on_one_clock
from mgpu_doctor.case.rank_device import accelerator
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.gpu.gpu_use import PRETEND, first_loader
from mgpu_doctor.rules.rule import Limit, Limits, Rule

SHARE = Limit(
    "share",
    0.10,
    "fraction",
    "share of every rank's step in host-to-device copies (TraceML's value for input in "
    "INPUT_BOUND, as both keep the device waiting for data).",
)


def _bound(measures: Measures, limits: Limits) -> Iterable[Finding]:
    if not all(map(accelerator, measures.case.ranks)):
        return
    ranks = [on_one_clock(rank) for rank in measures.case.ranks]
    shares = phase_shares(ranks, TRANSFER) or {}
    step = measures.step_seconds
    if len(shares) < len(ranks) or step is None or min(shares.values()) < limits["share"]:
        return
    joined, attribution = measures.joined, measures.attribution
    saved = max(shares.values())
    if joined is not None and attribution is not None:
        saved = saved_without_phase(joined, attribution, TRANSFER)
    pinned = {first_loader(rank).pinned for rank in ranks}
    ahead = all(measures.bound_by.get(rank) is BoundBy.DEVICE for rank in shares)
    share = float(np.median(list(shares.values())))
    yield Finding(
        code="transfer-bound",
        severity=severity_of_cost(saved),
        confidence=0.9 if pinned == {False} and not ahead else 0.7,
        title=f"Copies to the GPU take {format_share(share)} of every step "
        f"({format_seconds(share * step)})",
        cause=_cause(pinned, ahead=ahead),
        victims=tuple(sorted(shares)),
        evidence=(
            Evidence(
                "share of the step in host-to-device copies, on the rank with the least",
                min(shares.values()),
                "fraction",
                limits["share"],
                "transfer phase after warm-up",
            ),
            Evidence("the same, on the median rank", share, "fraction", limits["share"]),
        ),
        since_step=0,
        cost=Cost(saved, saved * step),
        fixes=(
            Fix(
                "overlap-copies",
                "Copy while the GPU computes",
                _how(pinned, ahead=ahead),
                Predicted(
                    1 - saved,
                    None,
                    "measured what-if: the same steps with no copies; an upper bound, as copies "
                    "that overlap still share the memory's bandwidth",
                ),
            ),
        ),
    )


def _cause(pinned: set[bool | None], *, ahead: bool) -> str:
    if ahead:
        return (
            "Every host queues work before its GPU begins it, so no host waits for a copy. The "
            "GPUs wait, because the copies are large or begin late."
        )
    if pinned == {False}:
        return (
            "The loader's batches are in pageable memory (pin_memory=False): CUDA copies them "
            "through its own buffer, and waits for the stream before it begins."
        )
    if pinned == {True}:
        return "The batches are pinned, so the copies are large, or training waits for each one."
    return "It is unknown whether the batches are pinned."


def _how(pinned: set[bool | None], *, ahead: bool) -> str:
    asynchronous = "`x = x.to(device, non_blocking=True)`"
    if ahead or pinned == {True}:
        return (
            f"{asynchronous}, for the next batch, on its own torch.cuda.Stream; send small types "
            "(uint8 images, token numbers) and convert on the GPU."
        )
    return f"{advice.in_loader('pin_memory=True')}, and {asynchronous}"


RULES = (
    Rule(
        code="transfer-bound",
        family="slow",
        summary="Every rank waits for copies from host to device in every step.",
        measured="The transfer phase as a share of the step on the rank with the least, timed on "
        "the device. Not judged if phases were stamped on the host: before a copy from pageable "
        "memory CUDA waits for all earlier work of the stream (CUDA Runtime API, API "
        "synchronization behavior), so the host's clock would count that work as copying. What the "
        "script does between a batch's arrival and the call of a wrapped module counts with it if "
        "the module gets a tensor of the batch's shape and type; without a wrapped module, only "
        "copies in a stream of their own are known.",
        thresholds="Warning if a step without it would be 5 % shorter.",
        fixes="`pin_memory=True` with `non_blocking=True`; smaller types; the next batch on its "
        "own stream.",
        examine=_bound,
        needs=("step_seconds",),
        limits=(SHARE,),
        unverified=PRETEND,
    ),
)
