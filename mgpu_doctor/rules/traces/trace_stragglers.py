"""A straggler, by profiler traces: the rank that waits least while all others wait for it."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.traces.late_rank import FLOOR, LEAST_UNITS, Late
from mgpu_doctor.analysis.traces.trace_summary import TraceSummary
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Detector, Limits

MOSTLY = 0.5
"""Share of its excess from which a part of its work names the code."""
CODES = {
    "input": "straggler-input",
    "kernels": "straggler-compute",
    "copies": "straggler-compute",
    "forward": "straggler-compute",
    "backward": "straggler-compute",
    "optimizer": "straggler-optimizer",
}
WORDS = {
    "input": "waiting for its loader",
    "kernels": "its kernels",
    "copies": "its copies to and from the device",
    "forward": "its forward pass",
    "backward": "its backward pass",
    "optimizer": "its optimizer step",
}
MEASURED = (
    "In profiler traces: collectives of all ranks are joined by group and number; the rank that "
    f"spends the least time in them is named if the others spend longer, in {LEAST_UNITS} steps or "
    f"more, by {format_share(FLOOR)} of the step and beyond chance (the same test, on few steps). "
    "Kernels, copies, loader, forward, backward and optimizer show what takes longer there."
)


def detector(code: str) -> Detector:
    """A detector of the late rank for this code, used only if no step records could be compared."""

    def examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
        summary = measures.traced
        if summary is None or summary.late is None:
            return
        part = _part(summary, summary.late)
        saved = summary.late.saved / max(summary.unit_seconds, 1e-12)
        fits = CODES.get(part or "", "straggler-other") == code
        if fits and saved >= limits["cost"]:
            yield _finding(measures, summary, code, part, min(saved, 1.0))

    return Detector(examine, MEASURED, needs=("traced",), unless=("joined",))


def _part(summary: TraceSummary, late: Late) -> str | None:
    longer = summary.longer or {}
    most = max(longer, key=lambda name: longer[name], default=None)
    return most if most is not None and longer[most] >= MOSTLY * late.saved else None


def _finding(
    measures: Measures, summary: TraceSummary, code: str, part: str | None, saved: float
) -> Finding:
    late = summary.late
    assert late is not None
    longer = (summary.longer or {}).get(part or "", 0.0)
    does = WORDS.get(part or "", "")
    what = f": {format_seconds(longer)} more per {late.unit} go into {does}" if part else ""
    units = "steps" if late.unit == "step" else "stretches of them"
    source = f"traces, {late.units} {units} joined by collective"
    where = f"rank {late.rank}"
    return Finding(
        code=code,
        severity=severity_of_cost(saved),
        confidence=round(min(0.95, 0.5 + 0.05 * late.units), 2),
        title=f"Rank {late.rank} is slowing down the other ranks{what}",
        cause=_cause(summary, late, part),
        culprits=(culprit_of(measures, late.rank),),
        victims=tuple(
            sorted(
                rank for rank in summary.ranks.values() if rank is not None and rank != late.rank
            )
        ),
        evidence=(
            Evidence(
                "wait in collectives beyond the shortest of all ranks, compared with the others' "
                "median",
                late.wait,
                "s",
                late.wait_of_others,
                source,
                where,
            ),
            Evidence(
                "share of these in which the others waited longer",
                late.positive,
                "fraction",
                0.5,
                source,
                where,
            ),
            *(
                Evidence(f"{name} beyond the others' median", extra, "s", 0.0, source, where)
                for name, extra in sorted((summary.longer or {}).items(), key=lambda item: -item[1])
                if extra >= 0.1 * late.saved
            ),
        ),
        cost=Cost(saved, late.saved),
        fixes=(_fix(late, part, saved),),
    )


def _cause(summary: TraceSummary, late: Late, part: str | None) -> str:
    waits = (
        f"The others wait {format_seconds(late.wait_of_others)} per {late.unit} in collectives "
        f"until it arrives; it waits {format_seconds(late.wait)}."
    )
    if part is not None:
        return f"{waits} Most of that goes into {WORDS[part]}."
    known = "kernels, copies and loader" if summary.on_device else "forward, backward and optimizer"
    between = "so the time is lost between them"
    return f"{waits} Its {known} take about as long as on the other ranks, {between}."


def _fix(late: Late, part: str | None, saved: float) -> Fix:
    basis = "traces: the same steps if it arrived no later than the next slowest rank"
    gain = Predicted(1 - saved, None, basis)
    if part == "input":
        return Fix(
            "load-in-background",
            "Prepare batches ahead of time",
            "`DataLoader(..., num_workers=4, prefetch_factor=4, persistent_workers=True)`; compare "
            f"rank {late.rank}'s shard and storage with the others'.",
            gain,
        )
    if part == "kernels":
        return Fix(
            "fix-rank",
            f"Find out what slows down rank {late.rank}'s device",
            "Compare clocks, temperature and power cap (nvidia-smi -q -d CLOCK,TEMPERATURE,POWER) "
            "and the batch's size and lengths with another rank's.",
            gain,
        )
    return Fix(
        "fix-rank",
        f"Find out what only rank {late.rank} does",
        f"Open its trace beside another's (ui.perfetto.dev) and compare what it does before each "
        f"collective; search the code for `if rank == {late.rank}`, logging, saving and `.item()`.",
        gain,
    )
