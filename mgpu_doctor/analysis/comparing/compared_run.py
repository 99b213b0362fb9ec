"""One run of a comparison: its settings, step time with a noise bound, phases and peak memory.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT
from mgpu_probes.outside.jobs.launchers import name_launcher

from mgpu_doctor.analysis.comparing.step_time_noise import Level, mean_level, median_level
from mgpu_doctor.analysis.machines.cpu_contention import surroundings
from mgpu_doctor.analysis.machines.oversubscription import measure_cpu_demand
from mgpu_doctor.analysis.machines.rank_samples import RankSamples
from mgpu_doctor.analysis.missing_measures import LEAST_RECORDS
from mgpu_doctor.analysis.steps.step_alignment import Floats, UnjoinableError, join
from mgpu_doctor.analysis.steps.warm_up import after_warm_up, all_after_warm_up
from mgpu_doctor.analysis.steps.work_and_wait import UnattributableError, attribute
from mgpu_doctor.analysis.structure.job_structure import structure_of
from mgpu_doctor.analysis.structure.replica_checks import compare as compare_replicas
from mgpu_doctor.case.device_times import on_one_clock, timed, untimed
from mgpu_doctor.case.model import Case, Rank, Records
from mgpu_doctor.case.process_metadata import UNKNOWN, PhaseClock, ProcessMetadata
from mgpu_doctor.case.rank_device import is_host_stamped
from mgpu_doctor.case.treatment_proofs import TreatmentProof

ON_HOST = "resident on the host"


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak bytes of each rank; ranks with unknown memory are left out."""

    kind: str
    """`allocated on the device`, `used on the device`, `ON_HOST`"""
    ranks: Mapping[int, int]

    @property
    def most(self) -> int:
        return max(self.ranks.values())


def memory_of(case: Case) -> Memory | str:
    """Peak memory by step records, else by device or host samples; or why it is unknown."""
    sources = (
        ("allocated on the device", _allocated),
        ("used on the device", _on_devices),
        (ON_HOST, _resident),
    )
    for kind, source in sources:
        known = source(case)
        if known:
            return Memory(kind, known)
    return "no step record has memory, and the recording has no sample of the ranks' processes"


def _allocated(case: Case) -> dict[int, int]:
    return {
        number: int(rank.steps["device_bytes"].max())
        for number, rank in _numbered(case).items()
        if len(rank.steps) and rank.steps["device_bytes"].any()
    }


def _on_devices(case: Case) -> dict[int, int]:
    ranks = {rank.pid: number for number, rank in _numbered(case).items() if rank.pid is not None}
    peaks: dict[int, int] = {}
    for sample in case.device_samples:
        for device in sample.devices:
            for process in device.processes:
                number = ranks.get(process.pid)
                if number is not None and process.memory:
                    peaks[number] = max(peaks.get(number, 0), process.memory)
    return peaks


def _resident(case: Case) -> dict[int, int]:
    """Resident bytes of the rank's own process; shared pages count for each process."""
    places = {
        (rank.host, rank.pid): number
        for number, rank in _numbered(case).items()
        if rank.pid is not None
    }
    peaks: dict[int, int] = {}
    for sample in case.host_samples:
        for pid, (_, resident) in sample.processes.items():
            number = places.get((sample.host or "", pid))
            if number is not None and resident:
                peaks[number] = max(peaks.get(number, 0), resident)
    return peaks


def _numbered(case: Case) -> dict[int, Rank]:
    return {rank.rank: rank for rank in case.ranks if rank.rank is not None}


MOST = 64
LONGEST = 200
TOLD = ("framework", "framework_version", "strategy", "backend", "precision", "device_name")
"""Fields of the process metadata, as the settings are called."""
TRAINERS = "mgpu_trainers."
OUR_LAUNCHERS = (
    "mgpu_trainers.apart",
    "mgpu_trainers.pytorch.ray_cluster",
    "mgpu_trainers.tensorflow.launcher",
)
"""Launchers that take the training module as a separate argument."""
ON = "on"
PROGRAM, MODEL, ARGUMENTS, TREATMENTS = "program", "model", "arguments", "treatments"


def settings_of(case: Case) -> dict[str, str]:
    """Name -> value, foreign texts: program, process metadata, then the program's options."""
    settings: dict[str, str] = {}
    program, words = program_of(case.job.command)
    if program:
        settings[PROGRAM] = program
    for name, value in (("framework", case.job.framework), ("strategy", case.job.strategy)):
        if value:
            settings[name] = value
    known = (rank.metadata for rank in case.ranks if rank.metadata != UNKNOWN)
    settings.update(_recorded_settings(next(known, UNKNOWN)))
    if case.applied is not None:
        settings[TREATMENTS] = ", ".join(
            name if value is True else f"{name}={value}" for name, value in case.applied.values
        )
    for name, value in islice(options_of(words), MOST):
        settings.setdefault(name, value)
    return {name[:LONGEST]: value[:LONGEST] for name, value in settings.items()}


def _recorded_settings(metadata: ProcessMetadata) -> Iterator[tuple[str, str]]:
    for name in TOLD:
        if value := getattr(metadata, name):
            yield name.replace("_", " "), value
    if metadata.threads is not None:
        yield "threads", str(metadata.threads)


def program_of(command: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The script or module that trains, and the words after it; launchers are passed over."""
    before = ""
    ours = False
    for place, word in enumerate(command):
        module = before in ("-m", "--module")
        if module and word in OUR_LAUNCHERS:
            ours = True
        elif (module and not _starts_launcher(command[place:])) or (
            ours and word.startswith(TRAINERS)
        ):
            return word, command[place + 1 :]
        elif word.endswith(".py"):
            return PurePath(word).name, command[place + 1 :]
        before = word
    return None, ()


def _starts_launcher(words: Sequence[str]) -> bool:
    """Whether `python -m` with these words starts a launcher."""
    return name_launcher(("python", "-m", *words)) is not None


def options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--key value`, `--key=value` and `--flag` as pairs; what is no option comes last."""
    rest = list(words)
    loose = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            loose.append(word)
            continue
        name, given, value = word[2:].partition("=")
        if not given:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else ON
        yield name, value
    if loose:
        yield ARGUMENTS, " ".join(loose)


def differing(settings: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Names whose values are not the same in all runs, in the order in which they were found."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return tuple(name for name in names if len({each.get(name) for each in settings}) > 1)


SMOOTHED = 10
"""Losses are averaged over this many steps, because those of single batches jump."""


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """A run's loss over time, from its first step on, warm-up included."""

    seconds: Floats
    """Seconds since the first step began, at the end of each step from the `SMOOTHED`th on."""
    mean: Floats
    """Mean of the latest `SMOOTHED` losses of all ranks at that time."""

    def seconds_to(self, target: float) -> float | None:
        """Seconds until the smoothed loss first reaches `target`; None: it does not."""
        reached = self.mean <= target
        return float(self.seconds[int(reached.argmax())]) if reached.any() else None


def losses_of(ranks: Sequence[Rank]) -> Losses | None:
    """Losses of the ranks that report one in every step (in a pipeline: the last stage). None if
    no rank does, or if the first steps are no longer on record."""
    known = [timed(rank.steps) for rank in ranks]
    reporting = [steps for steps in known if len(steps) and np.isfinite(steps["loss"]).all()]
    count = min((len(records) for records in reporting), default=0)
    if count < SMOOTHED or any(records["step"][0] != 0 for records in reporting):
        return None
    losses = np.zeros(count)
    for records in reporting:
        losses += records["loss"][:count].astype(np.float64) / len(reporting)
    first = reporting[0][:count]
    began = first["end_ns"][0] - first["wall_ns"][0]
    seconds = (first["end_ns"] - began) * 1e-9
    window = np.full(SMOOTHED, 1 / SMOOTHED)
    return Losses(seconds[SMOOTHED - 1 :], np.convolve(losses, window, "valid"))


def target_of(all_losses: Sequence[Losses | None]) -> float | None:
    """The lowest loss that every run reaches; None if a run reports none."""
    known = [losses for losses in all_losses if losses is not None]
    if len(known) < len(all_losses):
        return None
    return max(float(losses.mean.min()) for losses in known)


SAMPLES, TOKENS, STEPS = "samples", "tokens", "steps"
HALF = 0.5
"""A rank with fewer steps than this share of the most of any rank is left out (it died early)."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step of the whole job. None: unknown."""

    samples: float | None = None
    tokens: float | None = None

    def of(self, unit: str) -> float | None:
        return {SAMPLES: self.samples, TOKENS: self.tokens, STEPS: 1.0}[unit]


@dataclass(frozen=True, slots=True)
class Shared:
    """A host on which more threads compute than there are cores."""

    host: str
    ranks: int
    threads: int
    cores: float


@dataclass(frozen=True, slots=True)
class Run:
    """A run's measures, over the steps after warm-up."""

    name: str
    settings: Mapping[str, str]
    ranks: int
    """Ranks, or replicas if a process drives several devices."""
    steps: int
    """Number of measured steps."""
    mean: Level
    median: Level
    work: Work
    phases: Mapping[str, float | None]
    """Mean seconds a step, of all ranks; what is measured adds up to the mean step. `wait` is wait
    for other ranks and `communication` data that moves, where comparing ranks could tell them
    apart; else `wait` is both and `communication` None."""
    in_collectives: float | None
    """Wait and communication as a share of the time, 0..1; None: not measured."""
    in_collectives_reason: str | None
    memory: Memory | None
    memory_reason: str | None
    shared: tuple[Shared, ...] = ()
    losses: Losses | None = None
    echoing: int = 0
    """Ranks that saw the batches of another one, whose samples count once."""
    applied: TreatmentProof | None = None
    """The treatments that it was started with, and what trials of them had shown."""

    def rate(self, unit: str) -> float | None:
        """Samples, tokens or steps a second, of the whole job."""
        work = self.work.of(unit)
        return None if work is None or self.mean.seconds <= 0 else work / self.mean.seconds


def measured(name: str, case: Case) -> Run | str:
    """The run, or a sentence why it cannot be compared."""
    ranks = _lasting(case.ranks)
    if not ranks:
        return "it has no step after warm-up on record"
    series = _series(ranks)
    if float(series.mean()) <= 0:
        return "its steps took no time by its record"
    phases, why = _phases(case.ranks, ranks)
    echoing = _echoing(case.ranks)
    in_collectives = _in_collectives(phases, float(series.mean()))
    memory = memory_of(case)
    return Run(
        name=name,
        settings=settings_of(case),
        applied=case.applied,
        ranks=_width(case),
        steps=len(series),
        mean=mean_level(series),
        median=median_level(series),
        work=_work(case.ranks, ranks, echoing),
        phases=phases,
        in_collectives=in_collectives,
        in_collectives_reason=why if in_collectives is None else None,
        memory=memory if isinstance(memory, Memory) else None,
        memory_reason=None if isinstance(memory, Memory) else memory,
        shared=tuple(_shared(case)),
        losses=losses_of(case.ranks),
        echoing=len(echoing),
    )


def _width(case: Case) -> int:
    replicas = (rank.metadata.replicas for rank in case.ranks)
    split = (rank.metadata.data_parallel_devices for rank in case.ranks)
    ranks = max(len(case.ranks), case.job.world_size or 1)
    return max([ranks, *(count for count in (*replicas, *split) if count is not None)])


def _lasting(ranks: Sequence[Rank]) -> list[tuple[Rank, Records]]:
    """Ranks and their newest records after warm-up, equally many of each."""
    lasting = [(rank, all_after_warm_up(rank.steps)) for rank in ranks if len(rank.steps)]
    most = max((len(records) for _, records in lasting), default=0)
    kept = [
        rank_and_steps
        for rank_and_steps in lasting
        if most and len(rank_and_steps[1]) >= HALF * most
    ]
    common = min((len(records) for _, records in kept), default=0)
    return [(rank, records[-common:]) for rank, records in kept] if common else []


def _series(ranks: Sequence[tuple[Rank, Records]]) -> Floats:
    """Seconds of each step, as the mean of the ranks, which is the same whichever rank waits."""
    total = np.zeros(len(ranks[0][1]))
    for _, records in ranks:
        total += records["wall_ns"] * 1e-9
    return np.asarray(total / len(ranks))


def _phases(
    everybody: Sequence[Rank], ranks: Sequence[tuple[Rank, Records]]
) -> tuple[dict[str, float | None], str | None]:
    """Seconds per step of each phase, and why the time in collectives is unknown, if it is."""
    if untimed(everybody, LEAST_RECORDS):
        return dict.fromkeys(PHASES), "the host's clock does not show what devices do or wait for"
    everybody = [on_one_clock(rank) for rank in everybody]
    on_clock = [
        records if not is_host_stamped(rank) else after_warm_up(on_one_clock(rank).steps)
        for rank, records in ranks
    ]
    means = np.array([_known_means(records) for records in on_clock])
    known = ~np.isnan(means)
    sums = np.where(known, means, 0.0).sum(axis=0) / np.maximum(1, known.sum(axis=0))
    phases: dict[str, float | None] = {
        name: float(value) if any_known else None
        for name, value, any_known in zip(PHASES, sums, known.any(axis=0), strict=True)
    }
    if len(everybody) < 2:
        phases[PHASES[WAIT]] = phases[PHASES[WAIT]] or 0.0  # a single rank waits for no other
        return phases, None
    divided = _divided(everybody)
    if divided is not None:
        phases[PHASES[WAIT]], phases[PHASES[COMMUNICATION]] = divided
    unknown = phases[PHASES[WAIT]] is None and phases[PHASES[COMMUNICATION]] is None
    return phases, "the wait for other ranks was not measured" if unknown else None


def _known_means(records: Records) -> Floats:
    """(10) mean of each phase over the steps in which it was measured; NaN: in none."""
    values = records["phases"]
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0, dtype=np.float64)
    return np.where(counts, sums / np.maximum(1, counts), np.nan)


def _divided(ranks: Sequence[Rank]) -> tuple[float, float] | None:
    """Wait and communication, seconds a step; None where only their sum is known: ranks that cannot
    be compared, stages of a pipeline (the wait of even the busiest is bubble, too)."""
    if not structure_of(ranks).alike:
        return None
    try:
        attribution = attribute(join(ranks, least=LEAST_RECORDS))
    except (UnjoinableError, UnattributableError):
        return None
    known = ~np.isnan(attribution.communication)
    if not known.any():
        return None
    moving = float(attribution.communication[known].mean(dtype=np.float64))
    return float(attribution.in_collectives[known].mean(dtype=np.float64)) - moving, moving


def _in_collectives(phases: Mapping[str, float | None], seconds: float) -> float | None:
    parts = [phases[PHASES[WAIT]], phases[PHASES[COMMUNICATION]]]
    known = [part for part in parts if part is not None]
    return min(1.0, sum(known) / seconds) if known else None


def _echoing(everybody: Sequence[Rank]) -> frozenset[int]:
    """All but the first of those that saw the same batches (they share each, as in tensor parallel,
    or were fed so by mistake)."""
    alike = compare_replicas(everybody).alike
    return frozenset(number for group in alike for number in sorted(group)[1:])


def _work(
    everybody: Sequence[Rank],
    ranks: Sequence[tuple[Rank, Records]],
    echoing: frozenset[int],
) -> Work:
    if len(ranks) < len([rank for rank in everybody if rank.rank is not None]):
        return Work()
    once = [records for rank, records in ranks if rank.rank not in echoing]
    return Work(_total(once, "samples"), _total(once, "tokens"))


def _total(ranks: Iterable[Records], name: str) -> float | None:
    """The mean of a field per step, summed over ranks; None if no rank has it. Ranks that fetch
    nothing (a later stage of a pipeline, a parameter server) add nothing."""
    known = [steps for records in ranks if len(steps := timed(records))]
    means = [float(records[name].mean(dtype=np.float64)) for records in known]
    return sum(means) or None


def _shared(case: Case) -> Iterable[Shared]:
    if any(rank.metadata.clock is not PhaseClock.CPU for rank in case.ranks):
        return  # devices compute
    for cpu_demand in measure_cpu_demand(case, surroundings(RankSamples(case))):
        if cpu_demand.full and cpu_demand.cores is not None:
            yield Shared(
                cpu_demand.host, len(cpu_demand.ranks), cpu_demand.threads, cpu_demand.cores
            )
