"""What profiler traces add: another way to see what rules of other families find, and the split of
the time itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.traces.time_split import by_name
from mgpu_doctor.findings import Evidence, Finding, Severity
from mgpu_doctor.formatting import format_count, format_share
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.traces import late, time_spent

Way = Callable[[Measures, Limits], Iterable[Finding]]
MOST_NAMES = 5
WAYS: dict[str, tuple[Way, str]] = {
    **{
        code: (late.examine(code), late.MEASURED)
        for code in ("straggler-input", "straggler-compute", "straggler-optimizer")
    },
    "straggler-other": (late.examine("straggler-other"), late.MEASURED),
    "communication-bound": (
        time_spent.communication,
        time_spent.MEASURED["communication-bound"],
    ),
    "overlap-poor": (time_spent.overlap, time_spent.MEASURED["overlap-poor"]),
    "input-bound": (time_spent.feeding, time_spent.MEASURED["input-bound"]),
    "launch-bound": (time_spent.idle("launch-bound"), time_spent.MEASURED["launch-bound"]),
    "low-utilization": (
        time_spent.idle("low-utilization"),
        time_spent.MEASURED["low-utilization"],
    ),
}
"""By code: how a trace shows it, and in words."""


def with_traces(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """These rules, some of which traces speak for, too, and the split of the time."""
    return (*(_widened(rule) for rule in rules), *RULES)


def _widened(rule: Rule) -> Rule:
    if rule.code not in WAYS:
        return rule
    way, words = WAYS[rule.code]
    return replace(rule, also=(*rule.also, way), measured=f"{rule.measured} {words}")


def _split(measures: Measures, _: Limits) -> Iterable[Finding]:
    told = measures.traced
    if told is None:
        return
    splits = list(told.splits.values())
    window = sum(one.window for one in splits)
    compute, exposed, idle, moved = (
        sum(getattr(one, name) for one in splits) / window
        for name in ("compute", "exposed", "idle", "communication")
    )
    yield Finding(
        code="time-split",
        severity=Severity.INFO,
        confidence=1.0,
        title=f"{format_share(compute)} of the time computes, {format_share(exposed)} moves data "
        "or waits "
        f"for it with nothing computed, {format_share(idle)} is idle ({time_spent.named(told)})",
        cause="Means over ranks, between the first and the last event "
        + ("on each device." if told.on_device else "of each process: no GPU is in these traces."),
        evidence=tuple(_evidence(measures, moved, exposed)),
    )


def _evidence(measures: Measures, moved: float, exposed: float) -> Iterator[Evidence]:
    told = measures.traced
    assert told is not None
    if moved:
        hidden = 1 - exposed / moved
        yield Evidence("communication that computing hides", hidden, "fraction", None, "traces")
    why = [one.why_idle for one in told.splits.values() if one.why_idle is not None]
    if why:
        count = len(why)
        for name, seconds in (
            ("idle because nothing had been launched", sum(one.host for one in why)),
            ("idle between kernels that follow each other", sum(one.kernel for one in why)),
            ("idle for another reason", sum(one.other for one in why)),
        ):
            yield Evidence(f"{name}, mean of the ranks", seconds / count, "s", None, "traces")
    first = measures.case.traces[min(told.splits)]
    for name, count, seconds in by_name(first, MOST_NAMES):
        yield Evidence(
            f"{name[:80]} ({format_count(count, 'time')})",
            seconds,
            "s",
            None,
            "traces",
            first.source,
        )


RULES: tuple[Rule, ...] = (
    Rule(
        code="time-split",
        family="slow",
        summary="Where the time of the traces' steps goes.",
        measured="Unions of the intervals in PyTorch profiler traces: kernels that compute, "
        "collectives, copies; gaps by what ended them, as HolisticTraceAnalysis does. Without a "
        "GPU: operators and what gloo says of its collectives.",
        thresholds="No threshold: it is told of every set of traces.",
        fixes="None: it is for looking.",
        examine=_split,
        unverified="a trace recorded on a GPU: those of the tests are simulated in its layout",
    ),
)
