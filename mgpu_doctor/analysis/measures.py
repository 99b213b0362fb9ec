"""Computes all measures of a case: the input of every rule.

`diagnose` calls `measure`. Each part of the analysis adds its measures; a measure that could not be
taken is None, and `missing` holds the reason and the remedy. Nothing here judges or does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

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
from mgpu_doctor.case.placeholders import MACHINE
from mgpu_doctor.case.rank_device import is_host_stamped

LEAST_RECORDS = LEAST_STEPS // 2
"""A rank with fewer records (it died early) is left out, so that the others can be compared."""

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


def measure(case: Case, *, forgiving: bool = False) -> Measures:
    """Computes everything that rules ask for. Pure.

    `forgiving`: a part that raises an exception is left out and listed in `crashed`, so that the
    other parts are still there."""
    measures = Measures(case)
    for part, extend in PARTS.items():
        try:
            measures = extend(measures)
        except Exception as error:  # listed, never fatal: all other measures are still wanted
            if not forgiving:
                raise
            crash = describe_crash(f"analysis of {part}", error)
            measures = replace(measures, crashed=(*measures.crashed, crash))
    return measures


def describe_crash(part: str, error: Exception) -> Unexamined:
    """What is unknown because a part of the doctor raised an exception."""
    why = f"it failed with {type(error).__name__}: {error}"
    return Unexamined(part, why, "report it, with the recording, to its authors")


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
    """The measures with the structure of the job, and what else runs on its hosts."""
    case = seen.case
    structure = structure_of(case.ranks)
    return replace(
        seen,
        structure=structure,
        surroundings=surroundings(case),
        possible_waits=estimate_waits(case),
        replicas=Replicas() if structure.independent else compare(case.ranks),
    )


def _with_steps(seen: Measures) -> Measures:
    """The measures with those from step records."""
    case = seen.case
    if not any(len(rank.steps) for rank in case.ranks):
        return replace(
            seen, bound_by=find_bounds(case.ranks, {}, None), missing=_not_recorded(case)
        )
    serving = servers(case.ranks)
    ranks = without(case.ranks, serving)
    leads = {rank.rank: lead for rank in ranks if (lead := run_ahead(rank)) is not None}
    ahead = {number: lead for number, lead in leads.items() if number is not None}
    seconds = step_seconds(ranks)
    timed = replace(
        seen,
        servers=serving,
        step_seconds=seconds,
        run_ahead=ahead,
        bound_by=find_bounds(case.ranks, ahead, seconds),
    )
    if missing := untimed(ranks, LEAST_RECORDS):
        return replace(timed, missing=_not_device_timed(missing))
    first = ranks[0]  # as recorded
    ranks = tuple(on_one_clock(rank) for rank in ranks)
    shares = phase_shares(ranks, INPUT)
    alone = replace(timed, coverage=coverage(ranks), input_shares=shares)
    is_single = len(ranks) < 2 and (case.job.world_size or 1) - len(serving) < 2
    if not is_single and not seen.structure.independent:
        return _compared(alone, ranks)
    return replace(
        alone,
        input_saved=min(shares.values()) if shares else None,
        long_steps=long_steps_of(ranks[0] if is_host_stamped(first) else first)
        if is_single
        else None,
        stalls=find_stalls_of_each(ranks),
    )


def _compared(seen: Measures, ranks: tuple[Rank, ...]) -> Measures:
    """The measures with those that need a comparison of several ranks."""
    try:
        joined = join(ranks, least=LEAST_RECORDS)
    except UnjoinableError as reason:
        return replace(seen, missing=_missing("joined", str(reason), gap=reason.gap))
    try:
        attribution = attribute(joined)
    except UnattributableError as reason:
        hidden, remedy = explain_unseen_waits(ranks)
        remedy = remedy or (TRACE_ALL if hidden else REMEDIES["attribution"])
        missing = _missing("attribution", f"{reason}{hidden}", remedy)
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
        return replace(compared, missing=_missing("stragglers", few, gap=Gap.FEW_STEPS))
    stragglers = find_stragglers_by_stage(ranks, joined, attribution, seen.structure)
    counted = not any(rank.metadata.hands_samples_on for rank in ranks)
    return replace(
        compared,
        stragglers=stragglers,
        causes={
            straggler.rank: explain(
                joined,
                attribution,
                straggler,
                seen.surroundings,
                seen.structure,
                counted=counted,
                ahead=seen.run_ahead.get(straggler.rank),
            )
            for straggler in stragglers
        },
        stalls=find_newest_stalls(joined, attribution, ranks, seen.surroundings),
        loads=find_loads(joined, attribution, ranks, stragglers, seen.structure),
        missing={**seen.missing, "stalls": ONE_IN_MANY} if joined.is_sampled else seen.missing,
    )


def _with_network(seen: Measures) -> Measures:
    divided = seen.attribution if seen.moving else None
    return replace(seen, network=measure_network(seen.case, seen.joined, divided))


PARTS: Mapping[str, Callable[[Measures], Measures]] = {
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
"""Name of a part -> the function that adds its measures. Each may read what earlier ones added."""

MORE_STEPS = "let the job run for some tens of steps with every rank under `mgpu-doctor run`"
REMEDIES = {
    "joined": MORE_STEPS,
    "attribution": "use DistributedDataParallel or torch.distributed collectives in ranks that "
    "the probe can see, with a torch that this version of the probe supports",
    "stragglers": MORE_STEPS,
    "stalls": MORE_STEPS,
    "loads": MORE_STEPS,
}
"""Field -> the remedy if it is missing. Each field is computed from the ones before it."""
TRACE_ALL = "take a profiler trace of the same steps on all ranks: `mgpu-doctor trace PID`"
STEP_MEASURES = ("coverage", "input_shares", *REMEDIES)
"""Fields that are computed from the phases of steps."""
MOST_REASONS = 3
"""How many reasons for untimed devices are listed."""
ONE_IN_MANY = Unexamined(
    "stalls in single steps",
    "one step in several was timed, so the phases of the steps in between are not known",
    TRACE_ALL,
)


def _not_device_timed(ranks: Sequence[Rank]) -> dict[str, Unexamined]:
    """Field -> why it is missing if only the host's clock timed the work of devices."""
    numbers = sorted(rank.rank for rank in ranks if rank.rank is not None)
    who = f"rank {numbers[0]}" if len(numbers) == 1 else f"{len(ranks)} ranks"
    if any(rank.device_times is not None and len(rank.device_times) for rank in ranks):
        few = Unexamined(
            "own work and waiting on the devices",
            f"the devices of {who} timed fewer than {LEAST_RECORDS} of their steps so far",
            MORE_STEPS,
            Gap.FEW_STEPS,
        )
        return dict.fromkeys(STEP_MEASURES, few)
    why = Unexamined(
        "own work and waiting on the devices",
        f"the host timed the phases of {who} while the device worked asynchronously, and the "
        "device's queue can hide or move any wait: no rank was compared, and no wait for data "
        f"was judged{_reasons(ranks)}",
        TRACE_ALL,
    )
    return dict.fromkeys(STEP_MEASURES, why)


def _reasons(ranks: Sequence[Rank]) -> str:
    """Why these ranks' devices were not timed, as the end of a sentence; empty: unknown."""
    reasons = sorted({rank.metadata.untimed for rank in ranks if rank.metadata.untimed})
    known = "; ".join(reasons[:MOST_REASONS])
    return f". Why the devices were not timed: {known}" if reasons else ""


def _missing(
    name: str, reason: str, remedy: str | None = None, gap: Gap = Gap.RANK_COMPARISON
) -> dict[str, Unexamined]:
    """The field `name` and all fields computed from it -> why they are missing."""
    why = Unexamined("comparison of ranks", reason, remedy or REMEDIES[name], gap)
    return dict.fromkeys([*REMEDIES][[*REMEDIES].index(name) :], why)


IN_NO_TRACE = Unexamined(
    "phases, stalls and the run as a whole",
    "a profiler trace holds few steps, and intervals instead of phases",
    "start the job with `mgpu-doctor run -- COMMAND` next time",
)
MORE_TRACES = (
    "let every rank profile the same ten steps or more "
    "(torch.profiler.schedule(wait=1, warmup=2, active=10)) and hand over all of the traces"
)
_NEXT_TIME = "start the job with `mgpu-doctor run -- COMMAND` next time"
WITHOUT_STEPS = {
    "log": Unexamined("speed", "console text has no step times", _NEXT_TIME),
    "trace": Unexamined("speed", "dumps have no step times", _NEXT_TIME),
    MACHINE: Unexamined("training job", "none is running on this machine", _NEXT_TIME),
}
"""Kind of subject -> measures that it cannot contain."""


def _not_recorded(case: Case) -> dict[str, Unexamined]:
    """Measure -> why nothing could be measured: the case's own reason, if it has one."""
    known_reason = next(
        (unexamined for unexamined in case.unexamined if unexamined.gap is Gap.PROCESS_PROBE), None
    )
    if case.subject.kind in WITHOUT_STEPS:
        known_reason = WITHOUT_STEPS[case.subject.kind]
    why = known_reason or Unexamined(
        "step records",
        "no rank recorded a training step" if case.ranks else "no rank left a black box",
        "start the job with `mgpu-doctor run -- COMMAND` and let it reach its training loop; the "
        "probe needs torch or TensorFlow in the job's Python and is not loaded by `python -E`, "
        "`-I` or `-S`",
    )
    return dict.fromkeys(("step_seconds", *STEP_MEASURES), why)
