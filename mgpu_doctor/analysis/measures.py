"""Computes all measures of a case: the input of every rule.

`diagnose` calls `measure`. Each part of the analysis adds its measures; a measure that could not be
taken is None, and `missing` holds the reason and the remedy. Nothing here judges or does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

from mgpu_probes.inprocess.layout import INPUT

from mgpu_doctor.analysis.collectives.collective_durations import (
    CollectiveTimes,
    time_collectives,
)
from mgpu_doctor.analysis.collectives.divergence import Divergence
from mgpu_doctor.analysis.collectives.first_divergence import diverged, doubt
from mgpu_doctor.analysis.cost.communication_cost import Moving, moving
from mgpu_doctor.analysis.cost.what_if import saved_without_phase
from mgpu_doctor.analysis.machines.cpu_contention import Surroundings, estimate_waits, surroundings
from mgpu_doctor.analysis.machines.host_devices import Watched, watch
from mgpu_doctor.analysis.machines.job_network import Network, measure_network
from mgpu_doctor.analysis.machines.rank_devices import OnDevice, on_devices, why_unknown
from mgpu_doctor.analysis.machines.rank_samples import RankSamples
from mgpu_doctor.analysis.missing_measures import (
    IN_NO_TRACE,
    LEAST_RECORDS,
    MORE_TRACES,
    ONE_IN_MANY,
    REMEDIES,
    TRACE_ALL,
    describe_crash,
    explain_no_steps,
    explain_untimed_devices,
    list_missing,
)
from mgpu_doctor.analysis.postmortem.driver_xids import Xid, find_xids
from mgpu_doctor.analysis.postmortem.postmortem import PostMortem, examine_failures
from mgpu_doctor.analysis.stacks.device_positions import explain_unknown, list_positions
from mgpu_doctor.analysis.stacks.hang_analysis import Hang, analyse_hang, explain_inconclusive
from mgpu_doctor.analysis.stacks.stack_sampling import (
    SampledStraggler,
    find_sampled_straggler,
    why_incomparable,
)
from mgpu_doctor.analysis.stalls.few_stalls import find_newest_stalls
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.analysis.steps.host_bound import find_bounds, run_ahead
from mgpu_doctor.analysis.steps.phase_shares import (
    LongSteps,
    coverage,
    find_long_steps,
    long_steps_of,
    phase_shares,
    step_seconds,
)
from mgpu_doctor.analysis.steps.step_alignment import Joined, UnjoinableError, join
from mgpu_doctor.analysis.steps.typical_step import (
    TypicalStep,
    divide_collectives,
    typical_steps,
)
from mgpu_doctor.analysis.steps.work_and_wait import (
    Attribution,
    UnattributableError,
    attribute,
    explain_unseen_waits,
)
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.stragglers.pipeline_stragglers import find_stragglers_by_stage
from mgpu_doctor.analysis.stragglers.straggler_causes import Cause, explain
from mgpu_doctor.analysis.structure.independent_ranks import (
    find_blocked_alone,
    find_stalls_of_each,
)
from mgpu_doctor.analysis.structure.job_structure import (
    Structure,
    is_flat,
    servers,
    structure_of,
    without,
)
from mgpu_doctor.analysis.structure.load_imbalance import Loads, find_loads
from mgpu_doctor.analysis.structure.pipeline_stages import Stages, measure_stages
from mgpu_doctor.analysis.structure.replica_checks import Replicas, compare
from mgpu_doctor.analysis.traces.trace_summary import TraceSummary, summarize_traces
from mgpu_doctor.case.device_times import BoundBy, RunAhead, on_one_clock, untimed
from mgpu_doctor.case.model import Case, Gap, Rank, Unexamined
from mgpu_doctor.case.rank_device import is_host_stamped
from mgpu_doctor.recording.second_process import Divided, sharing_works

Need = Literal[
    "joined",
    "attribution",
    "stragglers",
    "stalls",
    "loads",
    "moving",
    "stages",
    "devices",
    "divergence",
    "hang",
    "sampled",
    "traced",
    "collective_times",
    "coverage",
    "long_steps",
    "step_seconds",
    "input_shares",
    "input_saved",
]
"""A measure that a detector can need: a field of `Measures` that may be None."""


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of a case, which rules read. None: not measured; `missing` says why."""

    case: Case
    joined: Joined | None = None
    attribution: Attribution | None = None
    stragglers: tuple[Straggler, ...] | None = None
    causes: Mapping[int, tuple[Cause, ...]] = field(default_factory=dict)
    """Rank of a straggler -> the causes of its excess, the largest first."""
    stalls: tuple[Stalls, ...] | None = None
    loads: Loads | None = None
    moving: Moving | None = None
    structure: Structure = field(default_factory=Structure)
    servers: frozenset[int] = frozenset()
    """Ranks that only serve parameters; they are not compared with other ranks."""
    stages: Stages | None = None
    surroundings: Mapping[int, Surroundings] = field(default_factory=dict)
    possible_waits: Mapping[int, float] = field(default_factory=dict)
    """Rank -> share of the time, 0..1, in which it may have waited for a core of others."""
    network: Network = field(default_factory=Network)
    replicas: Replicas = field(default_factory=Replicas)
    devices: Mapping[int, OnDevice] | None = None
    """Rank -> its GPU while it trained; ranks with an unknown GPU are left out."""
    watched: Watched = field(default_factory=Watched)
    """Every GPU of the hosts, with the ranks that run there."""
    divergence: Divergence | None = None
    """Where ranks' collectives diverge, by flight-recorder dumps."""
    hang: Hang | None = None
    """The ranks that the others wait for in a blocked job, by its stacks."""
    sampled: SampledStraggler | None = None
    """The rank that slows down the others in a running job, by sampled stacks."""
    traced: TraceSummary | None = None
    """Seconds by activity, and the late rank, by profiler traces."""
    collective_times: CollectiveTimes | None = None
    """How long collectives took from each rank's arrival to the end, by flight-recorder dumps."""
    coverage: float | None = None
    long_steps: LongSteps | None = None
    """A few steps that take much of the time of every rank."""
    step_seconds: float | None = None
    """Mean seconds per step of the whole job, after warm-up."""
    typical_steps: Sequence[TypicalStep] = ()
    """That of each rank of the case, in order; empty without step records."""
    input_shares: Mapping[int, float] | None = None
    """Rank -> share of its wall time after warm-up in which it waited for data."""
    input_saved: float | None = None
    """Share of the step time that is saved if no rank waited for data."""
    run_ahead: Mapping[int, RunAhead] = field(default_factory=dict)
    """Rank -> how far its host was ahead of its device; ranks for which this is unknown are left
    out."""
    bound_by: Mapping[int, BoundBy] = field(default_factory=dict)
    """Rank -> whether it is host-bound or device-bound; ranks for which this is unknown are left
    out."""
    postmortem: PostMortem = field(default_factory=PostMortem)
    """Which ranks failed, and which failed first and why."""
    xids: tuple[Xid, ...] = ()
    """Errors of GPUs that the driver reported."""
    crashed: tuple[Unexamined, ...] = ()
    """Parts of the analysis that raised an exception."""
    forgiving: bool = False
    """Whether a part that raises an exception is left out and listed in `crashed`."""
    missing: Mapping[str, Unexamined] = field(default_factory=dict)
    """Field name -> why it is None and what would give it. A field that is None but not named
    here does not apply to this job (a single rank has no other to compare with)."""

    @property
    def is_flat(self) -> bool:
        """Whether ranks exchange data only in groups of all ranks."""
        return is_flat(self.case.ranks, self.structure)

    def has(self, name: Need) -> bool:
        """Whether this was measured."""
        return getattr(self, name) is not None

    def rank(self, number: int) -> Rank | None:
        """The rank with this number."""
        return next((rank for rank in self.case.ranks if rank.rank == number), None)


Part: TypeAlias = Callable[[Measures], Measures]


def measure(case: Case, *, forgiving: bool = False) -> Measures:
    """Computes everything that rules ask for. Pure.

    `forgiving`: a part that raises an exception is left out and listed in `crashed`, so that the
    other parts are still there."""
    return _extended(Measures(case, forgiving=forgiving), PARTS)


def _extended(seen: Measures, parts: Mapping[str, Part]) -> Measures:
    """The measures with those of these parts. `parts`: name of a part -> the function that adds its
    measures; each may read what earlier ones added."""
    for part, extend in parts.items():
        try:
            seen = extend(seen)
        except Exception as error:  # listed, never fatal: all other measures are still wanted
            if not seen.forgiving:
                raise
            crash = describe_crash(f"analysis of {part}", error)
            seen = replace(seen, crashed=(*seen.crashed, crash))
    return seen


def _with_postmortem(seen: Measures) -> Measures:
    shows_waiting = seen.hang is not None or seen.divergence is not None
    postmortem = examine_failures(seen.case, shows_waiting=shows_waiting, is_flat=seen.is_flat)
    return replace(seen, postmortem=postmortem)


def _with_xids(seen: Measures) -> Measures:
    return replace(seen, xids=find_xids(seen.watched.gpus, seen.postmortem.first, seen.case))


def _with_devices(seen: Measures) -> Measures:
    """The measures with the GPUs of the hosts, and which rank uses which."""
    seen = replace(seen, watched=watch(seen.case))
    devices = on_devices(seen.case)
    if devices:
        return replace(seen, devices=devices)
    why = why_unknown(seen.case)
    return replace(seen, missing={**seen.missing, "devices": why}) if why else seen


def _with_collectives(seen: Measures) -> Measures:
    """The measures with the divergence and the times that flight-recorder dumps show."""
    flights = seen.case.flights
    seen = replace(seen, collective_times=time_collectives(flights))
    divergence = diverged(flights)
    open_question = doubt(flights) if divergence is None else None
    if open_question is None:
        return replace(seen, divergence=divergence)
    why = Unexamined("flight recorder", open_question.reason, open_question.remedy)
    return replace(seen, missing={**seen.missing, "divergence": why})


def _with_traces(seen: Measures) -> Measures:
    """The measures with those of profiler traces, which replace missing step records."""
    summary = summarize_traces(seen.case.traces, seen.case.job.world_size)
    if summary is None:
        return seen
    missing = {**seen.missing}
    if seen.step_seconds is None:
        missing = dict.fromkeys(missing, IN_NO_TRACE)
        missing.pop("step_seconds", None)
        missing.pop("stragglers", None)
    if seen.step_seconds is None and summary.undecided is not None:
        missing["stragglers"] = Unexamined(
            "comparison of ranks", summary.undecided, MORE_TRACES, Gap.RANK_COMPARISON
        )
    return replace(
        seen,
        traced=summary,
        step_seconds=summary.step_seconds if seen.step_seconds is None else seen.step_seconds,
        missing=missing,
    )


def _with_stacks(seen: Measures) -> Measures:
    """The measures with what stack snapshots show, if there are any."""
    snapshots = seen.case.job_snapshots
    if seen.structure.independent:
        return replace(seen, hang=find_blocked_alone(snapshots, seen.case.ranks))
    hang = analyse_hang(snapshots, list_positions(seen.case.ranks))
    reason = explain_inconclusive(hang)
    incomparable = why_incomparable(snapshots)
    if incomparable is None:
        seen = replace(seen, sampled=find_sampled_straggler(snapshots))
    else:
        hidden = Unexamined("which rank slows down the job, by stacks", incomparable, TRACE_ALL)
        seen = replace(seen, missing={**seen.missing, "sampled": hidden})
    if reason is None:
        return replace(seen, hang=hang)
    unknown = explain_unknown(seen.case.ranks)
    why = Unexamined(
        "which rank blocks the job",
        reason if unknown is None else f"{reason}, and {unknown}",
        "run the job under `mgpu-doctor run`, which asks torch's flight recorder, or hand over "
        "the recorder's dumps; on several hosts examine each of them",
        Gap.BLOCKING_RANK,
    )
    return replace(seen, missing={**seen.missing, "hang": why})


def _with_structure(seen: Measures) -> Measures:
    """The measures with the structure of the job."""
    case = seen.case
    structure = structure_of(case.ranks)
    replicas = Replicas() if structure.independent else compare(case.ranks)
    return replace(seen, structure=structure, replicas=replicas)


def _with_steps(seen: Measures) -> Measures:
    """The measures with those from step records."""
    case = seen.case
    if not any(len(rank.steps) for rank in case.ranks):
        return replace(
            seen, bound_by=find_bounds(case.ranks, {}, None), missing=explain_no_steps(case)
        )
    serving = servers(case.ranks)
    ranks = without(case.ranks, serving)
    on_clock = [on_one_clock(rank) for rank in case.ranks]
    compared = without(on_clock, serving)
    sampled = RankSamples(case)
    shares = Divided.in_one(partial(phase_shares, compared, INPUT))
    waits = Divided.in_one(partial(estimate_waits, sampled))
    covered, typical = coverage(compared), typical_steps(case.ranks, on_clock)
    cells = sum(len(rank.steps) for rank in case.ranks)
    parts: dict[str, Part] = {
        "step times": partial(_with_times, ranks),
        "host samples": lambda seen: replace(seen, surroundings=surroundings(sampled)),
    }
    with sharing_works((waits, shares, covered, typical), cells) as others:
        seen = _extended(replace(seen, servers=serving), parts)
        others.wait()
    parts = {"host load": lambda seen: replace(seen, possible_waits=others.of(waits))}
    if unknown := untimed(ranks, LEAST_RECORDS):
        seen = replace(seen, missing=explain_untimed_devices(unknown))
    else:
        parts["phases"] = lambda seen: replace(
            seen, coverage=others.of(covered), input_shares=others.of(shares)
        )
        parts["work of ranks"] = partial(_with_work, ranks, compared, sampled)
    parts["typical steps"] = lambda seen: replace(
        seen, typical_steps=_divided(others.of(typical), seen)
    )
    return _extended(seen, parts)


def _with_times(ranks: Sequence[Rank], seen: Measures) -> Measures:
    """The measures with those that do not ask what the time of a step was spent on."""
    leads = {rank.rank: lead for rank in ranks if (lead := run_ahead(rank)) is not None}
    ahead = {number: lead for number, lead in leads.items() if number is not None}
    seconds = step_seconds(ranks)
    return replace(
        seen,
        step_seconds=seconds,
        run_ahead=ahead,
        bound_by=find_bounds(seen.case.ranks, ahead, seconds),
    )


def _divided(typical: list[TypicalStep], seen: Measures) -> list[TypicalStep]:
    """The typical steps with time in collectives divided, if the ranks can be compared."""
    if seen.joined is None or seen.attribution is None or not seen.structure.alike:
        return typical
    return divide_collectives(typical, seen.case.ranks, seen.joined, seen.attribution)


def _with_work(
    recorded: tuple[Rank, ...], ranks: tuple[Rank, ...], sampled: RankSamples, seen: Measures
) -> Measures:
    """The measures with those from what ranks did in their steps. `recorded`, `ranks`: as recorded,
    and on one clock."""
    is_single = len(ranks) < 2 and (seen.case.job.world_size or 1) - len(seen.servers) < 2
    if not is_single and not seen.structure.independent:
        return _compared(seen, ranks, sampled)
    shares, first = seen.input_shares, recorded[0]
    return replace(
        seen,
        input_saved=min(shares.values()) if shares else None,
        long_steps=long_steps_of(ranks[0] if is_host_stamped(first) else first)
        if is_single
        else None,
        stalls=find_stalls_of_each(ranks),
    )


def _compared(seen: Measures, ranks: tuple[Rank, ...], sampled: RankSamples) -> Measures:
    """The measures with those that need a comparison of several ranks."""
    try:
        joined = join(ranks, least=LEAST_RECORDS)
    except UnjoinableError as reason:
        return replace(seen, missing=list_missing("joined", str(reason), gap=reason.gap))
    try:
        attribution = attribute(joined)
    except UnattributableError as reason:
        hidden, remedy = explain_unseen_waits(ranks)
        remedy = remedy or (TRACE_ALL if hidden else REMEDIES["attribution"])
        missing = list_missing("attribution", f"{reason}{hidden}", remedy)
        return replace(seen, joined=joined, missing=missing)
    alike = seen.structure.alike and not (seen.servers or joined.left_out)
    compared = replace(
        seen,
        joined=joined,
        attribution=attribution,
        long_steps=find_long_steps(joined.steps, joined.wall),
        input_saved=saved_without_phase(joined, attribution, INPUT),
        # Not separable: a pipeline's bubble, and the work of servers and others without steps.
        moving=moving(joined, attribution) if alike else None,
        stages=measure_stages(joined, attribution, seen.structure),
    )
    if attribution.steps < LEAST_STEPS:
        few = f"{attribution.steps} steps can be compared; {LEAST_STEPS} decide at the earliest"
        return replace(compared, missing=list_missing("stragglers", few, gap=Gap.FEW_STEPS))
    counted = not any(rank.metadata.hands_samples_on for rank in ranks)
    stalls = find_newest_stalls(joined, attribution, ranks, sampled)
    with sharing_works((stalls,), attribution.own.size) as meanwhile:
        stragglers = find_stragglers_by_stage(ranks, joined, attribution, seen.structure)
        return replace(
            compared,
            stragglers=stragglers,
            causes={
                straggler.rank: explain(
                    joined,
                    attribution,
                    straggler,
                    sampled,
                    seen.structure,
                    counted=counted,
                    ahead=seen.run_ahead.get(straggler.rank),
                )
                for straggler in stragglers
            },
            loads=find_loads(joined, attribution, ranks, stragglers, seen.structure),
            stalls=meanwhile.of(stalls),
            missing={**seen.missing, "stalls": ONE_IN_MANY} if joined.is_sampled else seen.missing,
        )


def _with_network(seen: Measures) -> Measures:
    divided = seen.attribution if seen.moving else None
    return replace(seen, network=measure_network(seen.case, seen.joined, divided))


PARTS: Mapping[str, Part] = {
    "the job's structure": _with_structure,
    "step records": _with_steps,
    "the network": _with_network,
    "flight-recorder dumps": _with_collectives,
    "stacks": _with_stacks,
    "profiler traces": _with_traces,
    "failures": _with_postmortem,
    "GPUs": _with_devices,
    "XIDs": _with_xids,
}
