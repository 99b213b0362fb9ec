"""The first sentence of every report, and the line about the job. It never calls a killed job
healthy, and never says "nothing wrong" about what was not measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.analysis.machines.rank_devices import LEAST_SAMPLES
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.model import Gap, Job, Outcome, State
from mgpu_doctor.case.placeholders import MACHINE
from mgpu_doctor.findings import Cost, Culprit, Diagnosis, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import (
    format_bytes,
    format_count,
    format_ranks,
    format_seconds,
    format_share,
    format_signal,
)
from mgpu_doctor.report import text
from mgpu_doctor.report.proof_text import describe_proofs


class Tone(str, Enum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    GOOD = "good"
    UNKNOWN = "unknown"


MARKS = {
    Tone.CRITICAL: "✗",
    Tone.WARNING: "!",
    Tone.INFO: "i",
    Tone.GOOD: "✓",
    Tone.UNKNOWN: "?",
}
"""The character that stands for a tone in every view."""
STYLES = {
    Tone.CRITICAL: "bold red",
    Tone.WARNING: "bold yellow",
    Tone.INFO: "bold cyan",
    Tone.GOOD: "bold green",
    Tone.UNKNOWN: "bold magenta",
}
"""How terminals show a tone."""
_GONE = frozenset({State.EXITED, State.DEAD, State.MISSING})


@dataclass(frozen=True, slots=True)
class Verdict:
    tone: Tone
    sentence: str


def leading(diagnosis: Diagnosis) -> Finding | None:
    """Returns the finding that the report is about; None if no finding is a warning or worse,
    unless only a memory snapshot was given."""
    first = next(iter(diagnosis.findings), None)
    alone = diagnosis.case.snapshots and not diagnosis.case.ranks
    return first if first and (alone or first.severity is not Severity.INFO) else None


def named_ranks(diagnosis: Diagnosis) -> frozenset[int]:
    """Returns the ranks that the headline names: the culprits of the leading finding, or of the
    first note where nothing is a warning."""
    named = leading(diagnosis) or _first_note(diagnosis)
    culprits = named.culprits if named is not None else ()
    return frozenset(culprit.rank for culprit in culprits if culprit.rank is not None)


def _first_note(diagnosis: Diagnosis) -> Finding | None:
    return next((finding for finding in diagnosis.findings if finding.culprits), None)


def verdict(diagnosis: Diagnosis) -> Verdict:
    lead = leading(diagnosis)
    if lead:
        return Verdict(Tone(lead.severity.value), text.line(lead.title) or lead.code)
    if diagnosis.case.traces and diagnosis.case.subject.kind == "trace":
        return _by_traces(diagnosis)
    times = [diagnosis.step_seconds, *(rank.step_seconds_median for rank in diagnosis.ranks)]
    if all(time is None for time in times):
        return _without_steps(diagnosis)
    return _blocked(diagnosis) or _measuring(diagnosis) or _with_steps(diagnosis)


def _measuring(diagnosis: Diagnosis) -> Verdict | None:
    """The verdict on a running job whose probe has not measured enough to judge: what it waits
    for. None: it has, or nothing will be measured."""
    if diagnosis.case.job.outcome is not Outcome.RUNNING:
        return None
    gaps = {gap.gap: gap for gap in diagnosis.unexamined}
    so_far = _lasted(diagnosis.case.job.started, diagnosis.case.observed)
    since = f", {so_far} after the start" if so_far else ""
    steps = _steps(diagnosis)
    if diagnosis.case.subject.kind != "recording" or Gap.PROCESS_PROBE in gaps:
        return None
    if not diagnosis.ranks:
        waits_for = f"no rank has started to train{since}"
    elif not steps:
        ranks = format_count(len(diagnosis.ranks), "rank")
        waits_for = f"{ranks} seen, and no step has ended{since}"
    elif steps < LEAST_STEPS:
        waits_for = f"{steps} of the {LEAST_STEPS} steps that a judgement needs"
    elif (few := gaps.get(Gap.FEW_STEPS)) is not None:
        waits_for = text.line(few.reason)
    else:
        return None
    return Verdict(Tone.UNKNOWN, f"measuring…: {waits_for}")


def _with_steps(diagnosis: Diagnosis) -> Verdict:
    praise = _nothing_wrong(diagnosis.case.job)
    note = _first_note(diagnosis)
    if praise and note is not None:
        return Verdict(Tone.INFO, f"no warning; worth knowing: {text.line(note.title)}")
    if praise:
        return Verdict(Tone.GOOD, praise)
    return Verdict(Tone.UNKNOWN, f"the job {outcome(diagnosis)}, and nothing recorded says why")


def _without_steps(diagnosis: Diagnosis) -> Verdict:
    if diagnosis.case.subject.kind == "log":
        return Verdict(Tone.UNKNOWN, "no known failure found in this log")
    if diagnosis.case.subject.kind == MACHINE:
        judged = len(diagnosis.case.device_samples) >= LEAST_SAMPLES
        gpus = "no GPU is lost or slowed down" if judged else "its GPUs answer too slowly to judge"
        return Verdict(Tone.UNKNOWN, f"no training job is running, and {gpus}")
    if not diagnosis.ranks:
        sentence = f"no training rank was seen; the job {outcome(diagnosis)}"
        return _measuring(diagnosis) or Verdict(Tone.UNKNOWN, sentence)
    rank_count = format_count(len(diagnosis.ranks), "rank")
    sentence = f"{rank_count} seen, but no step was measured; the job {outcome(diagnosis)}"
    by_stacks = _by_stacks(diagnosis)
    if by_stacks is not None and by_stacks.tone is not Tone.GOOD:
        return by_stacks
    return _measuring(diagnosis) or by_stacks or Verdict(Tone.UNKNOWN, sentence)


def _by_stacks(diagnosis: Diagnosis) -> Verdict | None:
    """The verdict on a running job without step records, by its stacks; None without stacks."""
    case = diagnosis.case
    if not case.job_snapshots or case.job.outcome is not Outcome.RUNNING:
        return None
    if (blocked := _blocked(diagnosis)) is not None:
        return blocked
    snapshots = format_count(len(case.job_snapshots), "stack snapshot")
    alive = [rank for rank in diagnosis.ranks if rank.state not in _GONE]
    still = [rank for rank in alive if rank.still_seconds is not None]
    independent = are_independent(case.ranks)
    if len(case.job_snapshots) > 1 and len(still) < len(alive) and not (independent and still):
        if len(alive) == 1:
            found = "its stack changes"
        else:
            found = "every rank moves" if independent else "no rank delays the others"
        return Verdict(Tone.GOOD, f"the job is running, and {found} in {snapshots}")
    if not still:
        return Verdict(Tone.UNKNOWN, f"{snapshots}: not enough to say whether the job moves")
    longest = max(still, key=lambda rank: rank.still_seconds or 0.0)
    name = "it" if len(diagnosis.ranks) == 1 else f"rank {longest.rank}"
    where = text.cut(text.line(longest.where or ""), 80)
    still_there = f"has been in {where}" if where else "has not moved"
    lasted = format_seconds(longest.still_seconds or 0.0)
    sentence = f"no movement seen in {snapshots}: {name} {still_there} for {lasted}"
    others = "; the others move" if len(still) == 1 else "; others move"
    return Verdict(Tone.UNKNOWN, sentence + others * (len(still) < len(alive)))


def _blocked(diagnosis: Diagnosis) -> Verdict | None:
    """The verdict on a running job that is blocked for a reason that its stacks do not show."""
    running = diagnosis.case.job.outcome is Outcome.RUNNING
    if running and any(gap.gap is Gap.BLOCKING_RANK for gap in diagnosis.unexamined):
        return Verdict(Tone.UNKNOWN, "the job is blocked, and its stacks do not show why")
    return None


def _by_traces(diagnosis: Diagnosis) -> Verdict:
    """Returns the verdict on a job with nothing but profiler traces."""
    sentence = "nothing wrong found in the traces"
    if any(unexamined.gap is Gap.RANK_COMPARISON for unexamined in diagnosis.unexamined):
        return Verdict(Tone.UNKNOWN, f"{sentence}, but the ranks could not be compared")
    return Verdict(Tone.GOOD, sentence)


def _nothing_wrong(job: Job) -> str | None:
    if job.outcome is Outcome.RUNNING:
        return "nothing wrong so far"
    if job.outcome is Outcome.COMPLETED:
        return "nothing wrong found"
    if job.outcome is Outcome.KILLED and job.asked:
        return f"nothing wrong until the job was asked to end ({text.line(job.asked)})"
    return None


def outcome(diagnosis: Diagnosis) -> str:
    """How the job ended, as a predicate: `completed after 26 s`, `is still running, after 26 s`."""
    job = diagnosis.case.job
    if job.outcome is Outcome.RUNNING:
        so_far = _lasted(job.started, diagnosis.case.observed)
        return f"is still running, after {so_far}" if so_far else "is still running"
    if job.outcome is Outcome.UNKNOWN:
        return "ended in an unknown way" if job.ended else "has no recorded end"
    lasted = _lasted(job.started, job.ended if job.ended is not None else diagnosis.case.observed)
    return f"{_ending(job)} after {lasted}" if lasted else _ending(job)


def _ending(job: Job) -> str:
    if job.outcome is Outcome.HUNG:
        return "hung"
    if job.outcome is Outcome.KILLED:
        if job.asked:
            return f"was ended by {text.line(job.asked)}"
        return f"was killed ({format_signal(job.signal)})" if job.signal else "was killed"
    if job.outcome is Outcome.FAILED:
        return "failed" if job.exit_code is None else f"failed (exit code {job.exit_code})"
    return str(job.outcome.value)


def _lasted(start: float | None, end: float | None) -> str | None:
    return format_seconds(end - start) if start is not None and end and end >= start else None


def job_line(diagnosis: Diagnosis) -> str:
    """`torch, ddp under torchrun; 4 ranks on node-a; 400 steps of 66 ms; completed after 26 s`."""
    job = diagnosis.case.job
    if diagnosis.case.subject.kind == MACHINE:
        gpus = format_count(len(diagnosis.case.device_samples[-1].devices), "GPU")
        return f"{gpus} on {text.line(job.id)}; no training job is running"
    description = ", ".join(
        text.cut(text.line(part), 40) for part in (job.framework, job.strategy) if part
    )
    if job.launcher:
        launcher = text.cut(text.line(job.launcher), 40)
        description = f"{description} under {launcher}" if description else launcher
    parts = [description] if description else []
    if diagnosis.ranks:
        where = f" on {text.line(job.hosts[0])}" if len(job.hosts) == 1 else ""
        if len(job.hosts) > 1:
            where = f" on {len(job.hosts)} hosts"
        parts.append(count_ranks(diagnosis) + where)
    step_count = _steps(diagnosis)
    if step_count:
        steps = format_count(step_count, "step")
        seconds = diagnosis.step_seconds
        parts.append(steps if seconds is None else f"{steps}, {format_seconds(seconds)} each")
    # A trace holds a few steps, not the end of the job.
    if job.outcome is not Outcome.UNKNOWN or diagnosis.case.subject.kind != "trace":
        parts.append(outcome(diagnosis).removeprefix("is ").removeprefix("was "))
    return "; ".join(parts)


def count_ranks(diagnosis: Diagnosis) -> str:
    """`4 ranks`, `3 of 4 ranks`; `2 independent ranks` if they have no process group."""
    world, count = diagnosis.case.job.world_size, len(diagnosis.ranks)
    if are_independent(diagnosis.case.ranks):
        return f"{count} independent ranks"
    return f"{count} of {world} ranks" if world and count < world else format_count(count, "rank")


def name_culprits(finding: Finding, *, limit: int = 6) -> str:
    """The culprits: `rank 2 (node-a, pid 4711, cuda:2)`, `ranks 0-3, 9`."""
    culprits = finding.culprits
    if not culprits:
        return "no single rank"
    if len(culprits) == 1:
        return _culprit(culprits[0])
    numbers = [culprit.rank for culprit in culprits if culprit.rank is not None]
    if len(numbers) == len(culprits):
        hosts = sorted({text.line(culprit.host) for culprit in culprits if culprit.host})
        where = f" on {hosts[0]}" if len(hosts) == 1 else ""
        return format_ranks(numbers, limit=limit) + where
    named = "; ".join(_culprit(culprit) for culprit in culprits[:limit])
    return named if len(culprits) <= limit else f"{named} and {len(culprits) - limit} more"


def _culprit(culprit: Culprit) -> str:
    if culprit.host and (culprit.rank, culprit.pid, culprit.device) == (None, None, None):
        return f"host {text.cut(text.line(culprit.host), 40)}"
    if culprit.device and culprit.rank is None and culprit.pid is None:
        on = f" of {text.cut(text.line(culprit.host), 40)}" if culprit.host else ""
        return f"{text.cut(text.line(culprit.device), 40)}{on}"
    name = "a process" if culprit.rank is None else f"rank {culprit.rank}"
    about = [text.cut(text.line(culprit.host), 40)] if culprit.host else []
    about += [f"pid {culprit.pid}"] if culprit.pid is not None else []
    about += [text.cut(text.line(culprit.device), 40)] if culprit.device else []
    return f"{name} ({', '.join(about)})" if about else name


def cost(spent: Cost) -> str | None:
    """`29 ms per step, 45 % of the time`; None where nothing is known."""
    parts = [
        f"{format_seconds(spent.seconds_per_step)} per step" if spent.seconds_per_step else "",
        f"{format_share(spent.step_fraction)} of the time" if spent.step_fraction else "",
        format_bytes(spent.bytes) if spent.bytes else "",
    ]
    return ", ".join(part for part in parts if part) or None


def gain(predicted: Predicted | None, step_seconds: float | None) -> str | None:
    """What a fix is expected to do: `36 ms per step instead of 66 ms, 45 % less (what-if)`."""
    if predicted is None:
        return None
    parts = []
    ratio = predicted.step_time_ratio
    if ratio is not None:
        change = format_share(abs(1 - ratio)) + (" less" if ratio <= 1 else " more")
        parts.append(
            f"{change} time per step"
            if step_seconds is None
            else f"{format_seconds(step_seconds * ratio)} per step instead of "
            f"{format_seconds(step_seconds)}, {change}"
        )
    if predicted.memory_bytes:
        change = "less" if predicted.memory_bytes < 0 else "more"
        parts.append(f"{format_bytes(abs(predicted.memory_bytes))} {change} memory")
    if not parts:
        return None
    basis = text.line(predicted.basis)
    return "; ".join(parts) + (f" ({basis})" if basis else "")


def gains(diagnosis: Diagnosis, finding: Finding, fix: Fix) -> list[str]:
    """The predicted gain of a fix, per step and for the run, or `the same gain` if an earlier fix
    has it; then what trials of it showed."""
    both = [gain(fix.predicted, diagnosis.step_seconds), whole_run(diagnosis, fix.predicted)]
    first = next(
        alternative for alternative in finding.fixes if alternative.predicted == fix.predicted
    )
    gain_texts = [gain_text for gain_text in both if gain_text]
    predicted = ["the same gain"] if gain_texts and first is not fix else gain_texts
    tried = describe_proofs(fix, diagnosis.case.tried)
    return [*predicted, f"tried: {tried}"] if tried else predicted


def whole_run(diagnosis: Diagnosis, predicted: Predicted | None) -> str | None:
    """`this run's 400 steps in 14.6 s instead of 26.4 s`; None if the job runs or gains nothing."""
    seconds, step_count = diagnosis.step_seconds, _steps(diagnosis)
    ratio = predicted.step_time_ratio if predicted is not None else None
    is_over = diagnosis.case.job.outcome is not Outcome.RUNNING
    if seconds is None or step_count < 2 or ratio is None or ratio >= 1 or not is_over:
        return None
    took = seconds * step_count
    owner = "these" if diagnosis.case.subject.kind == "trace" else "this run's"
    return (
        f"{owner} {format_count(step_count, 'step')} in {format_seconds(took * ratio)} instead of "
        f"{format_seconds(took)}"
    )


def _steps(diagnosis: Diagnosis) -> int:
    """How many steps the job took. A trace, or a resumed job, does not begin at step 0; if records
    were lost, steps count from 0."""
    last = diagnosis.furthest_step
    if last is None:
        return 0
    trained = [
        rank
        for rank in diagnosis.case.ranks
        if len(rank.steps) and rank.rank not in diagnosis.servers
    ]
    is_complete = trained and not any(rank.lost_records for rank in trained)
    first = min(int(rank.steps["step"].min()) for rank in trained) if is_complete else 0
    return last + 1 - first
