"""The one path from facts to findings: measure, examine, fold, order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.cost.what_if import Efficiency, Ideal, efficiency, ideal
from mgpu_doctor.analysis.measures import Measures, measure
from mgpu_doctor.analysis.missing_measures import describe_crash
from mgpu_doctor.analysis.postmortem.failure_order import find_latest_end
from mgpu_doctor.analysis.postmortem.log_verdict import GENERIC_CODES
from mgpu_doctor.analysis.stacks.progress import seconds_without_movement
from mgpu_doctor.analysis.steps.recent_steps import recent, unmoved
from mgpu_doctor.analysis.steps.typical_step import UNKNOWN, TypicalStep
from mgpu_doctor.case.device_times import clock_of
from mgpu_doctor.case.model import Case, Outcome, Rank, State, Unexamined
from mgpu_doctor.findings import (
    BusyWaiting,
    Diagnosis,
    Finding,
    FirstFailure,
    RankSummary,
    Severity,
)
from mgpu_doctor.rules.catalogue import OWN, catalogue
from mgpu_doctor.rules.framework_advice import advise
from mgpu_doctor.rules.gpu.busy_waiting import find_busy_waiting
from mgpu_doctor.rules.hang.stack_branches import build_branches, describe_places
from mgpu_doctor.rules.rule import Rule
from mgpu_doctor.rules.settings import DEFAULTS, Settings

SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


def diagnose(case: Case, settings: Settings = DEFAULTS) -> Diagnosis:
    """What is wrong with a job, which rank is the culprit and what a fix gains. Pure.

    Of a running job only the newest steps are judged: past problems are not reported."""
    known = catalogue()
    case = unmoved(case)
    current = recent(case) if case.job.outcome is Outcome.RUNNING else case
    measures = measure(current, forgiving=settings.forgiving)
    found, silent = _examine(measures, known.rules, settings)
    findings = tuple(advise(one, case) for one in ordered(folded(found, known.rules), known.rules))
    hung = next(filter(_stops, findings), None)
    if hung is not None and case.job.outcome in (Outcome.RUNNING, Outcome.UNKNOWN):
        case = replace(case, job=replace(case.job, outcome=Outcome.HUNG))
    low = measures.missing.get("coverage")
    places = describe_places(case)
    even, together = _ideal(measures), _efficiency(measures)
    efficiency = together if isinstance(together, Efficiency) else None
    waiting = find_busy_waiting(measures, findings, hung)
    still = seconds_without_movement(case.job_snapshots)
    return Diagnosis(
        case=case,
        ranks=tuple(
            _summary(
                measures,
                rank,
                step,
                hung=hung,
                where=_where(rank, places),
                busy_waiting=None if rank.rank is None else waiting.get(rank.rank),
                still_seconds=None if rank.stack_pid is None else still.get(rank.stack_pid),
            )
            for rank, step in zip(
                measures.case.ranks,
                measures.typical_steps or [UNKNOWN] * len(measures.case.ranks),
                strict=True,
            )
        ),
        coverage=measures.coverage,
        coverage_reason=low.reason if low else None,
        findings=findings,
        unexamined=_once([*case.unexamined, *known.broken, *_partly(measures), *silent]),
        step_seconds=measures.step_seconds,
        ideal_step_seconds=even.ideal_seconds if even else None,
        waste_fraction=even.waste_fraction if even else None,
        load_balance=efficiency.load_balance if efficiency else None,
        communication_efficiency=efficiency.communication if efficiency else None,
        efficiency_reason=together if isinstance(together, str) else None,
        stages=measures.structure.stages,
        servers=measures.servers,
        tree=build_branches(case, findings),
        first_failures=tuple(
            FirstFailure(failure.rank, failure.pid, find_latest_end(failure, case))
            for failure in measures.postmortem.first
        ),
    )


def _examine(
    measures: Measures, rules: Iterable[Rule], settings: Settings
) -> tuple[list[Finding], list[Unexamined]]:
    """The rules' findings, and the measures that they lacked."""
    findings: list[Finding] = []
    unexamined: list[Unexamined] = []
    for rule in rules:
        if rule.code in settings.ignore:
            continue
        unexamined += [
            measures.missing[need]
            for need in rule.list_unmet_needs(measures)
            if need in measures.missing
        ]
        try:
            findings += rule.apply(measures, settings.limits(rule))
        except Exception as error:  # reported, never fatal: all other findings are still wanted
            if rule in OWN and not settings.forgiving:
                raise
            unexamined.append(describe_crash(f"rule {rule.code}", error))
    return findings, unexamined


def folded(found: Sequence[Finding], rules: Iterable[Rule]) -> list[Finding]:
    """One cause, one finding: drops what a more specific finding replaces for the same culprits,
    and what is said about the speed of a rank that is dead or hung."""
    replaces = {rule.code: rule.replaces for rule in rules}
    families = {rule.code: rule.family for rule in rules}
    stopped = {
        culprit.rank
        for one in found
        if one.severity is Severity.CRITICAL
        for culprit in one.culprits
        if culprit.rank is not None
    }
    kept = []
    for finding in found:
        accused = {culprit.rank for culprit in finding.culprits}
        replaced = any(
            (
                finding.code in (*replaces.get(other.code, ()), *other.replaces)
                or _gives_way(finding, other)
            )
            and (accused & {culprit.rank for culprit in other.culprits} or _vague(finding, other))
            for other in found
            if other is not finding
        )
        about_speed = (
            families.get(finding.code) == "slow" and finding.severity is not Severity.CRITICAL
        )
        if not replaced and not (about_speed and accused and accused <= stopped):
            kept.append(finding)
    return kept


def _gives_way(finding: Finding, other: Finding) -> bool:
    """Whether only console text supports the first, while the second is a critical finding from
    another source that says more than that a rank ended."""
    better = other.severity is Severity.CRITICAL and other.code not in GENERIC_CODES
    return finding.gives_way and better and not other.gives_way


def _vague(finding: Finding, other: Finding) -> bool:
    """Whether both report the job's end and only the other one names a culprit."""
    both = finding.severity is other.severity is Severity.CRITICAL
    return both and not finding.culprits and bool(other.culprits)


def ordered(found: Iterable[Finding], rules: Iterable[Rule] = ()) -> tuple[Finding, ...]:
    """The most severe findings first; of these, what spoils the result of the training, then the
    costliest."""
    families = {rule.code: rule.family for rule in rules}
    return tuple(
        sorted(
            found,
            key=lambda finding: (
                SEVERITIES.index(finding.severity),
                families.get(finding.code) != "training",
                -(finding.cost.step_fraction or 0.0),
                -finding.confidence,
            ),
        )
    )


def _ideal(measures: Measures) -> Ideal | None:
    """The job's efficiency, if the ranks' work is comparable and they wait for each other: not
    across pipeline stages, nor among the workers of a parameter server."""
    compared = measures.attribution
    if compared is None or not measures.structure.alike:
        return None
    if measures.servers:
        return None
    return ideal(compared)


def _efficiency(measures: Measures) -> Efficiency | str:
    """The efficiency, or a sentence that says why it is unknown."""
    if measures.servers:
        return "the workers of a parameter server do not wait for each other"
    if measures.attribution is not None:
        return efficiency(measures.attribution)
    if measures.structure.independent:
        return "the ranks have no process group: none waits for another"
    why = measures.missing.get("attribution")
    return why.reason if why else "a single rank waits for no other rank"


def _partly(measures: Measures) -> list[Unexamined]:
    """Ranks that the comparison had to leave out, with reasons."""
    parts = [*measures.crashed]
    if "sampled" in measures.missing:
        parts.append(measures.missing["sampled"])
    joined = measures.joined
    if measures.servers:
        numbers = ", ".join(str(rank) for rank in sorted(measures.servers))
        parts.append(
            Unexamined(
                f"speed of rank {numbers}",
                "a parameter server's steps are the updates that workers' gradients trigger, and "
                "no other rank does the same work",
                "nothing to fix: the list of ranks shows its own times",
            )
        )
    if joined is not None and joined.left_out:
        numbers = ", ".join(str(rank) for rank in joined.left_out)
        parts.append(
            Unexamined(
                f"speed of rank {numbers}",
                "too few step records to compare",
                "let the job run longer, with these ranks under observation",
            )
        )
    return parts


def _once(items: Iterable[Unexamined]) -> tuple[Unexamined, ...]:
    return tuple(dict.fromkeys(items))


def _summary(
    measures: Measures,
    rank: Rank,
    step: TypicalStep,
    *,
    hung: Finding | None,
    where: str | None,
    busy_waiting: BusyWaiting | None,
    still_seconds: float | None,
) -> RankSummary:
    number = -1 if rank.rank is None else rank.rank
    lead = measures.run_ahead.get(number)
    return RankSummary(
        rank=rank.rank,
        host=rank.host,
        pid=rank.pid,
        device=rank.device,
        state=_state(rank, hung).value,
        exit_code=rank.exit_code,
        signal=rank.signal,
        last_step=rank.last_step,
        step_seconds_median=_traced_median(measures, rank)
        if step.seconds is None
        else step.seconds,
        phases=step.phases,
        where=where,
        clock=clock_of(rank) if len(rank.steps) else None,
        run_ahead=lead,
        bound_by=None if lead is None else measures.bound_by.get(number),
        busy_waiting=busy_waiting,
        unseen_waits=rank.metadata.unseen_waits,
        still_seconds=still_seconds,
    )


def _traced_median(measures: Measures, rank: Rank) -> float | None:
    """Median seconds per step by the rank's profiler trace."""
    return measures.traced.step_medians.get(rank.rank) if measures.traced else None


def _where(rank: Rank, places: Mapping[int, str]) -> str | None:
    """What the rank is doing, by its stack, which is newer, or by its black box."""
    lives = rank.state in (State.RUNNING, State.WAITING)
    if lives and rank.stack_pid is not None and rank.stack_pid in places:
        return places[rank.stack_pid]
    return (rank.now.site or rank.now.phase) if rank.now is not None else None


def _stops(finding: Finding) -> bool:
    return finding.code.startswith("hang-") and finding.severity is Severity.CRITICAL


def _state(rank: Rank, hung: Finding | None) -> State:
    """The rank's state; `hung` only for living culprits of a hang finding."""
    alive = rank.state in (State.RUNNING, State.WAITING)
    if hung is not None and alive:
        if rank.rank in {culprit.rank for culprit in hung.culprits}:
            return State.HUNG
        if rank.rank in hung.victims:
            return State.WAITING
    return rank.state
