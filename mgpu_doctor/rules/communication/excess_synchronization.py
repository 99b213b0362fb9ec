"""Barriers and small collectives that Python calls in every step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.cost.gradient_reduction import sample_ranks
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.device_times import BoundBy
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.user_code import is_user_code
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule


@dataclass(frozen=True, slots=True)
class Setting:
    """The user setting that makes a framework synchronize the ranks."""

    framework: str
    why: str
    """The reason, to follow `calls … for`."""
    how: str
    """The setting to use instead."""


SETTINGS = {
    "/lightning/fabric/utilities/distributed.py": (
        LIGHTNING := Setting(
            "Lightning",
            "a value that is logged in every step with sync_dist=True",
            '`self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)` synchronizes '
            "once per epoch. Or use `self.log(..., sync_dist=False)` in training_step, which logs "
            "the value of rank 0.",
        )
    ),
    "/lightning_fabric/utilities/distributed.py": LIGHTNING,
    "/torchmetrics/utilities/distributed.py": Setting(
        "TorchMetrics",
        "a metric that is computed over all ranks in every step",
        "Keep dist_sync_on_step=False, the default, and call `metric.compute()` every 50th step or "
        "at the end of an epoch. `metric.update(...)` accumulates without synchronizing.",
    ),
    "/accelerate/utils/operations.py": Setting(
        "Accelerate",
        "accelerator.gather, gather_for_metrics or reduce, which the loop or transformers' Trainer "
        "calls in every step",
        "Call it only `if step % 50 == 0:` and accumulate the values in a tensor in between. Leave "
        "it if training itself needs the result. If transformers' Trainer calls it, to count the "
        "tokens of all ranks, set `TrainingArguments(average_tokens_across_devices=False)`: each "
        "rank then divides its loss by its own count.",
    ),
    "/transformers/trainer_pt_utils.py": Setting(
        "transformers",
        "the mean of the loss, which is logged in every step",
        "Set `TrainingArguments(logging_steps=50)` instead of 1.",
    ),
}
"""By the end of the file in which the framework calls torch; read in the sources of Lightning
2.6, TorchMetrics 1.9, Accelerate 1.15 and transformers 4 and 5."""


def is_own(site: str) -> bool:
    """Whether `file:line` is a line of the user's own code."""
    return is_user_code(site.rpartition(":")[0] or site)


def setting(site: str) -> Setting | None:
    """The setting that causes the call at `file:line` of an installed package; None: unknown."""
    file = site.rpartition(":")[0]
    return next((one for end, one in SETTINGS.items() if file.endswith(end)), None)


BARRIERS = frozenset({"barrier", "monitored_barrier"})
OBJECTS = frozenset(
    {"all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"}
)
"""Collectives that pickle objects, such as metrics; never gradients."""
NUMBERS = frozenset({"all_reduce", "reduce", "all_gather", "gather", "broadcast"})
"""With DistributedDataParallel, which exchanges the gradients itself, these most likely exchange a
loss or a metric. Otherwise they are the training itself."""
FEW = 1024
"""Most elements of a value for logging; embeddings of a contrastive loss are larger."""
MOST_PLACES = 4
SEEN_STEPS = 20
"""Least steps: with fewer, one-time work dominates the counters."""
SOURCE = "calls that Python made, counted and timed by the probe"


@dataclass(frozen=True, slots=True)
class Place:
    """A line that synchronizes in every step, on all ranks."""

    name: str
    site: str
    seconds: float
    """Seconds per step, on the rank that waited there least."""


def places(measures: Measures, limits: Limits) -> list[Place]:
    """The lines that synchronize needlessly in every step, the costliest first. Lines of installed
    packages count if the user setting that causes them is known."""
    ranks = sample_ranks(measures.case.ranks)
    if len(ranks) < 2 or not measures.structure.alike:
        return []
    by_rank = [_often(rank, limits) for rank in ranks]
    everywhere = set(by_rank[0]).intersection(*by_rank[1:])
    found = [Place(*key, seconds=min(each[key].seconds for each in by_rank)) for key in everywhere]
    return sorted(found, key=lambda one: (-one.seconds, one.site))


def _often(rank: Rank, limits: Limits) -> dict[tuple[str, str], Place]:
    taken = rank.metadata.steps
    if taken is None or taken < SEEN_STEPS:
        return {}
    module = rank.metadata.ddp
    names = BARRIERS | OBJECTS
    if module is not None and module.comm_hook is None:
        names |= NUMBERS
    return {
        (call.name, call.site): Place(call.name, call.site, call.seconds / taken)
        for call in rank.metadata.calls
        if call.name in names and limits["least"] <= call.count / taken <= limits["most"]
        if call.name not in NUMBERS or (call.elements is not None and call.elements <= FEW)
        if call.through is None and (is_own(call.site) or setting(call.site) is not None)
    }


def measure_cost(measures: Measures, found: Iterable[Place]) -> float | None:
    """Share of the step time spent there even by the rank that arrived last. None: unknown, because
    a host is or may be ahead of its device and then also waits for the device's work."""
    ranks = sample_ranks(measures.case.ranks)
    by_host = all(
        rank.rank is not None and measures.bound_by.get(rank.rank) is BoundBy.HOST for rank in ranks
    )
    if not measures.step_seconds or not by_host:
        return None
    return min(1.0, sum(place.seconds for place in found) / measures.step_seconds)


def _excess(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = places(measures, limits)
    own = [place for place in found if is_own(place.site)]
    if own:
        yield _of_the_script(measures, own)
    theirs = [one for one in found if one not in own]
    for caller in dict.fromkeys(setting(their.site) for their in theirs):
        if caller is not None:
            yield _of_a_framework(
                measures, caller, [one for one in theirs if setting(one.site) == caller]
            )


def _of_the_script(measures: Measures, found: list[Place]) -> Finding:
    sure = [place for place in found if place.name in BARRIERS | OBJECTS]
    saved = measure_cost(measures, sure) if sure else None
    first = (sure or found)[0]
    return _finding(
        measures,
        found,
        saved,
        title=f"{first.name} at {first.site} synchronizes all ranks in every step",
        cause=_cause(sure, found),
        fixes=tuple(_fixes(sure, found, saved)),
        confidence=0.9 if sure else 0.5,
    )


def _of_a_framework(measures: Measures, caller: Setting, found: list[Place]) -> Finding:
    saved = measure_cost(measures, found)
    names = " and ".join(sorted({place.name for place in found}))
    return _finding(
        measures,
        found,
        saved,
        title=f"{caller.framework} synchronizes all ranks in every step",
        cause=f"{caller.framework} calls {names} for {caller.why}.",
        fixes=(Fix("less-often", "Synchronize the ranks less often", caller.how, _gains(saved)),),
        confidence=0.8,
    )


def _finding(
    measures: Measures,
    found: list[Place],
    saved: float | None,
    *,
    title: str,
    cause: str,
    fixes: tuple[Fix, ...],
    confidence: float,
) -> Finding:
    step = measures.step_seconds
    cost = f": {format_seconds(saved * step)} per step" if saved is not None and step else ""
    return Finding(
        code="sync-excess",
        severity=severity_of_cost(saved) if saved is not None else Severity.INFO,
        confidence=confidence,
        title=f"{title}{cost}",
        cause=cause,
        evidence=tuple(
            Evidence(
                f"{place.name} per step, on the rank that waited there least",
                place.seconds,
                "s",
                None,
                SOURCE,
                place.site,
            )
            for place in found[:MOST_PLACES]
        ),
        since_step=0,
        cost=Cost(saved, saved * step) if saved is not None and step else Cost(),
        fixes=fixes,
    )


def _cause(sure: list[Place], found: list[Place]) -> str:
    if any(place.name in BARRIERS for place in sure):
        return (
            "A barrier makes every rank wait for the slowest one, in addition to the gradient "
            "exchange. Training does not need it."
        )
    if sure:
        return "Python objects are pickled and exchanged in every step, and all ranks wait for it."
    sites = ", ".join(one.site for one in found[:MOST_PLACES])
    return (
        "DistributedDataParallel exchanges the gradients itself. This is an extra collective in "
        f"every step ({sites}), for example the mean of a logged loss."
    )


def _fixes(sure: list[Place], found: list[Place], saved: float | None) -> Iterable[Fix]:
    gains = _gains(saved)
    barriers = [place for place in sure if place.name in BARRIERS]
    if barriers:
        yield Fix(
            "no-barrier",
            "Remove the barrier from the loop",
            f"Delete {barriers[0].name}() at {barriers[0].site}. If all ranks must wait for a file "
            "that rank 0 writes, call it only in that step.",
            gains,
        )
    others = [one for one in found if one not in barriers]
    if others:
        yield Fix(
            "less-often",
            "Exchange values for logging only every 50th step",
            f"Call {others[0].name}() at {others[0].site} only `if step % 50 == 0:` and accumulate "
            "the values in a tensor in between. Leave it if training itself needs the result (a "
            "contrastive loss, the norm of all gradients).",
            gains if sure and not barriers else None,
        )


def _gains(saved: float | None) -> Predicted | None:
    if not saved:
        return None
    return Predicted(
        1 - saved,
        None,
        "measured: time in these calls on the rank where it is shortest; the other ranks' waiting "
        "moves to the next exchange",
    )


RULES = (
    Rule(
        code="sync-excess",
        family="slow",
        summary="A barrier, or an exchange of Python objects or of values for logging, "
        "synchronizes all ranks in every step.",
        measured="Calls to torch.distributed per step, by line of Python code. The cost is the "
        "time spent there by the rank where it is shortest: the others' additional waiting would "
        "only move to the next gradient exchange. If a host is ahead of its GPU, or may be, the "
        "cost is unknown. Lines of installed packages are reported only if it is known which of "
        "your settings causes them (Lightning, TorchMetrics, Accelerate, transformers).",
        thresholds="Counted over at least 20 steps, on all ranks. Barriers and exchanges of "
        "objects count everywhere. all_reduce, all_gather and similar calls count only with "
        "DistributedDataParallel without a communication hook (otherwise they are the training "
        "itself) and up to 1,024 elements; alone, they are info. Calls that torch makes itself "
        "(`Join`, autograd) do not count. Warning from 5 % of the step time.",
        fixes="Remove the barrier, log every 50th step, or change the framework's setting.",
        examine=_excess,
        needs=("step_seconds",),
        limits=(
            Limit(
                "least",
                0.9,
                "calls",
                "calls per step: a line that is called less than about once per step is not part "
                "of every step.",
            ),
            Limit(
                "most",
                4.0,
                "calls",
                "calls per step: more from one line belong to a layer (SyncBatchNorm) or a loop "
                "over parameters.",
            ),
        ),
        unverified="on GPUs",
    ),
)
