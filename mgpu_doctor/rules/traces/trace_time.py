"""Where a job's time goes, by profiler traces: communication, loader, host, device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.traces.time_split import Split, by_name
from mgpu_doctor.analysis.traces.trace_summary import TraceSummary
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_count, format_ranks, format_seconds, format_share
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.rule import Detector, Examine, Limits, Rule

OVERLAP_EXPOSED = 0.10
"""Share of exposed communication from which hiding it is suggested (torch-tb-profiler 0.4.3, BSD:
communication of more than 10 % of the step)."""
HIDDEN = 0.5
"""Share of the communication that computing hides; below it, overlap is poor."""
BUSY = 0.70
"""Share of the time in which a device ran something (SageMaker's LowGPUUtilization: 70 %)."""
MOSTLY = 0.5
"""Share of idle time from which one cause explains it."""
BATCHES = 4
"""Batches per exchange that the fix suggests."""
MOST_NAMES = 5
SOURCE = "traces"
_HOSTED = (
    " There is no GPU in these traces: the same cores compute and move the data, so use fewer "
    "ranks or more cores first."
)


def _exposed_least(summary: TraceSummary) -> float | None:
    """Smallest share of exposed communication of any rank; None if one of several ranks is
    traced alone, which does not separate transfer from waiting."""
    if summary.world < 2 or len(summary.splits) < 2:
        return None
    return min(split.exposed / split.window for split in summary.splits.values())


def _find_communication(measures: Measures, limits: Limits) -> Iterable[Finding]:
    summary = measures.traced
    share = _exposed_least(summary) if summary is not None else None
    if summary is None or share is None or share < limits["share"] or _is_hideable(summary):
        return
    saved = share * (1 - 1 / BATCHES)
    yield Finding(
        code="communication-bound",
        severity=severity_of_cost(saved) if summary.on_device else Severity.INFO,
        confidence=0.85 if summary.on_device else 0.6,
        title=f"Moving data between the ranks takes {format_share(share)} of the time, with "
        "nothing computed meanwhile",
        cause="Computing takes too little time for this many bytes on this link."
        + ("" if summary.on_device else _HOSTED),
        evidence=tuple(_moving(summary, share)),
        cost=_cost(summary, saved) if summary.on_device else Cost(),
        fixes=(
            Fix(
                "accumulate",
                f"Accumulate gradients over {BATCHES} batches per exchange",
                "with model.no_sync(): around all but the last batch's backward; scale the loss by "
                f"1/{BATCHES}.",
                Predicted(1 - saved, None, f"formula: an exchange in every {BATCHES}th batch"),
            ),
            Fix(
                "check-link",
                "Check that the fastest link is used",
                "NCCL_DEBUG=INFO prints the transport; nvidia-smi topo -m shows the available "
                "links.",
            ),
        ),
    )


def _is_hideable(summary: TraceSummary) -> bool:
    """Whether computing takes longer than communication, and hides little of it."""
    if not summary.on_device:
        return False
    least = min(summary.splits.values(), key=lambda split: split.exposed / split.window)
    hidden = least.communication - least.exposed
    return least.compute >= least.communication and hidden < HIDDEN * least.communication


def _find_poor_overlap(measures: Measures, _: Limits) -> Iterable[Finding]:
    summary = measures.traced
    share = _exposed_least(summary) if summary is not None else None
    if summary is None or share is None or share < OVERLAP_EXPOSED or not _is_hideable(summary):
        return
    least = min(summary.splits.values(), key=lambda split: split.exposed / split.window)
    hidden = 1 - least.exposed / least.communication
    saved = share - least.communication * (1 - HIDDEN) / least.window
    yield Finding(
        code="overlap-poor",
        severity=severity_of_cost(saved),
        confidence=0.75,
        title=f"Computing hides only {format_share(hidden)} of the communication: "
        f"{format_share(share)} of the time is spent on moving data alone",
        cause=f"Kernels compute for {format_seconds(least.compute)} and data moves for "
        f"{format_seconds(least.communication)}, mostly one after the other.",
        evidence=tuple(_moving(summary, share)),
        cost=_cost(summary, saved),
        fixes=(
            Fix(
                "overlap",
                "Overlap communication with backward",
                "DistributedDataParallel exchanges gradients in buckets during backward: leave "
                "bucket_cap_mb at 25 or below; FSDP: backward_prefetch=BACKWARD_PRE, "
                "limit_all_gathers; by hand: async_op=True, and wait() just before the update.",
                Predicted(1 - saved, None, "formula: half of the communication hidden"),
            ),
        ),
    )


def _find_input_wait(measures: Measures, limits: Limits) -> Iterable[Finding]:
    summary = measures.traced
    share = _fetching(summary) if summary is not None else 0.0
    if summary is None or share < limits["share"]:
        return
    who = "All ranks wait" if len(summary.splits) > 1 else "The training waits"
    yield Finding(
        code="input-bound",
        severity=severity_of_cost(share),
        confidence=0.8,
        title=f"{who} for data: {format_share(share)} of the time",
        cause="The loop waits in its DataLoader while nothing runs. Traces do not show why: the "
        "workers are separate processes."
        if measures.case.job.framework == "torch"
        else "The loop waits in its iterator while nothing runs.",
        victims=_ranks(summary),
        evidence=(_least("in the loader, with nothing else running", share, limits["share"]),),
        cost=_cost(summary, share),
        fixes=(
            Fix(
                "load-in-background",
                "Prepare batches ahead of time",
                "DataLoader(..., num_workers=4, prefetch_factor=4, persistent_workers=True, "
                "pin_memory=True)",
                Predicted(1 - share, None, "traces: the same steps with no wait for data"),
            ),
        ),
    )


def _fetching(summary: TraceSummary) -> float:
    return min(split.fetching / split.window for split in summary.splits.values())


def _find_idle(code: str) -> Examine:
    """The rule's `examine` for `launch-bound` or `low-utilization`: devices that are idle."""

    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        summary = measures.traced
        if summary is None or not summary.on_device or _fetching(summary) >= OVERLAP_EXPOSED:
            return
        splits = list(summary.splits.values())
        share = min(split.idle / split.window for split in splits)
        launching = all(_is_launching(split) for split in splits)
        if share >= 1 - BUSY and launching == (code == "launch-bound"):
            yield _idle(summary, code, share)

    return examine


def _is_launching(split: Split) -> bool:
    why = split.why_idle
    return why is not None and why.host >= MOSTLY * split.idle and why.short >= MOSTLY * why.host


def _idle(summary: TraceSummary, code: str, share: float) -> Finding:
    split = max(summary.splits.values(), key=lambda split: split.idle / split.window)
    many = code == "launch-bound"
    host = split.why_idle.host if split.why_idle is not None else 0.0
    title = f"The GPUs run nothing for {format_share(share)} of the time or more"
    if many:
        title += ": the host cannot start their kernels fast enough"
    gain = Predicted(1 - share, None, "upper bound: the same kernels without gaps")
    fix = Fix(
        "find-host-work",
        "Find out what the host does in the gaps",
        "Open the trace (ui.perfetto.dev) at a gap: synchronizing calls (.item(), printing), "
        "saving, or Python between steps.",
        gain,
    )
    if many:
        fix = Fix(
            "compile",
            "Fuse kernels and launch them together",
            'model = torch.compile(model, mode="reduce-overhead"), before it is wrapped in '
            "DistributedDataParallel; fused=True for the optimizer; a larger batch.",
            gain,
        )
    return Finding(
        code=code,
        severity=severity_of_cost(share),
        confidence=0.8 if many else 0.7,
        title=title,
        cause="Most gaps are short and end with a kernel that the host launched only then."
        if many
        else "The host launched nothing, or the device waited for something else.",
        victims=_ranks(summary),
        evidence=(
            _least("nothing runs on the device", share, 1 - BUSY),
            Evidence("of this, no kernel had been launched", host, "s", split.idle, SOURCE),
            Evidence("compute kernels per rank", split.kernels, "kernels", None, SOURCE),
            Evidence("median duration of these", split.kernel, "s", None, SOURCE),
        ),
        cost=_cost(summary, share),
        fixes=(fix,),
    )


def _moving(summary: TraceSummary, share: float) -> Iterator[Evidence]:
    least = min(summary.splits.values(), key=lambda split: split.exposed / split.window)
    yield _least("data moves and nothing computes", share, None)
    hidden = least.communication - least.exposed
    yield Evidence("communication hidden by computation", hidden, "s", least.communication, SOURCE)
    yield Evidence("computing", least.compute, "s", least.window, SOURCE)


def _least(what: str, share: float, limit: float | None) -> Evidence:
    measure = f"share of the time: {what}, on the rank with the least"
    return Evidence(measure, share, "fraction", limit, SOURCE)


def _cost(summary: TraceSummary, share: float) -> Cost:
    step = summary.step_seconds
    return Cost(share, None if step is None else share * step)


def _ranks(summary: TraceSummary) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in summary.ranks.values() if rank is not None))


def _name_ranks(summary: TraceSummary) -> str:
    """`ranks 0-7`, or `8 ranks` if the traces do not say which."""
    known = _ranks(summary)
    return format_ranks(known) if known else format_count(len(summary.splits), "rank")


def _split(measures: Measures, _: Limits) -> Iterable[Finding]:
    summary = measures.traced
    if summary is None:
        return
    splits = list(summary.splits.values())
    window = sum(split.window for split in splits)
    compute, exposed, idle, moved = (
        sum(getattr(split, name) for split in splits) / window
        for name in ("compute", "exposed", "idle", "communication")
    )
    yield Finding(
        code="time-split",
        severity=Severity.INFO,
        confidence=1.0,
        title=f"{format_share(compute)} of the time is computation, {format_share(exposed)} is "
        f"exposed communication, {format_share(idle)} is idle ({_name_ranks(summary)})",
        cause="Means over ranks, between the first and the last event "
        + (
            "on each device."
            if summary.on_device
            else "of each process: no GPU is in these traces."
        ),
        evidence=tuple(_split_evidence(measures, moved, exposed)),
    )


def _split_evidence(measures: Measures, moved: float, exposed: float) -> Iterator[Evidence]:
    summary = measures.traced
    assert summary is not None
    if moved:
        hidden = 1 - exposed / moved
        yield Evidence("communication hidden by computation", hidden, "fraction", None, "traces")
    why = [split.why_idle for split in summary.splits.values() if split.why_idle is not None]
    if why:
        count = len(why)
        for name, seconds in (
            ("idle because no kernel had been launched", sum(idle.host for idle in why)),
            ("idle between kernels that follow each other", sum(idle.kernel for idle in why)),
            ("idle for another reason", sum(idle.other for idle in why)),
        ):
            yield Evidence(f"{name}, mean of the ranks", seconds / count, "s", None, "traces")
    first = measures.case.traces[min(summary.splits)]
    for name, count, seconds in by_name(first, MOST_NAMES):
        yield Evidence(
            f"{name[:80]} ({format_count(count, 'time')})",
            seconds,
            "s",
            None,
            "traces",
            first.source,
        )


def _detector(examine: Examine, measured: str) -> Detector:
    """A detector that is used only if no step records could be compared."""
    return Detector(
        examine, f"In profiler traces: {measured}", needs=("traced",), unless=("joined",)
    )


COMMUNICATION_BOUND = _detector(
    _find_communication,
    "collectives while nothing computes, on the rank with the least, which waits for no other "
    "rank.",
)
OVERLAP_POOR = _detector(
    _find_poor_overlap,
    "on GPUs, kernels compute for longer than data moves, and hide less than half of it.",
)
INPUT_BOUND = _detector(
    _find_input_wait,
    "the loop waited in its DataLoader while the device was idle, on the rank with the least of "
    "it.",
)
LAUNCH_BOUND = _detector(
    _find_idle("launch-bound"),
    "gaps between kernels, most of them of 200 µs or less and ended by a kernel that was launched "
    "after the gap had begun.",
)
LOW_UTILIZATION = _detector(
    _find_idle("low-utilization"),
    "the device is idle for 30 % of the time or more, on every rank.",
)

RULES: tuple[Rule, ...] = (
    Rule(
        code="time-split",
        family="slow",
        summary="How the traced steps spend their time.",
        measured="Unions of the intervals in PyTorch profiler traces: kernels that compute, "
        "collectives, copies; gaps by what ended them, as HolisticTraceAnalysis does. Without a "
        "GPU: operators and gloo's own records of its collectives.",
        thresholds="No threshold: every set of traces gets this finding.",
        fixes="None: it only shows where the time goes.",
        examine=_split,
        unverified="a trace recorded on a GPU: those of the tests are simulated in its layout",
    ),
)
