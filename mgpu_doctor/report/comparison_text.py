"""The figures and sentences of a comparison, the same in every view. Runs are called A, B, …
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mgpu_doctor.analysis.comparing.compared_run import MODEL, PROGRAM, Run
from mgpu_doctor.analysis.comparing.comparison import Comparison
from mgpu_doctor.analysis.comparing.run_pairs import Change, Pair
from mgpu_doctor.analysis.comparing.scaling import Best, Growth
from mgpu_doctor.analysis.comparing.step_time_noise import Interval, Level
from mgpu_doctor.formatting import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_number,
    format_seconds,
    format_share,
)
from mgpu_doctor.report import phase_bars, text
from mgpu_doctor.report.proof_text import describe_applied
from mgpu_doctor.report.verdict import Tone, Verdict


@dataclass(frozen=True, slots=True)
class Column:
    head: str
    cells: tuple[str, ...]
    needed: int
    """Priority: if there is no room, the lowest are left out first."""
    number: bool = True


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How a run's step time is spent."""

    letter: str
    in_collectives: str
    memory: str
    seconds: float
    phases: Mapping[str, float]


def columns(compared: Comparison) -> tuple[Column, ...]:
    """The columns of a table with one row per run, without facts that all runs share."""
    runs, scaled = compared.runs, compared.scaling.runs
    several = len({run.ranks for run in runs}) > 1
    table = [Column("", tuple(letter(place) for place in range(len(runs))), 9, number=False)]
    if several:
        table.append(Column("ranks", tuple(str(run.ranks) for run in runs), 8))
    if "strategy" in compared.differs:
        names = (text.line(run.settings.get("strategy", UNKNOWN)) for run in runs)
        table.append(Column("strategy", tuple(text.cut(name, 14) for name in names), 5, False))
    table.append(Column("usual step", tuple(format_seconds(run.median.seconds) for run in runs), 2))
    table.append(Column("mean step", tuple(_bounded(run.mean) for run in runs), 7))
    rates = tuple(_rate(run, compared.unit) for run in runs)
    table.append(Column(f"{compared.unit}/s", rates, 6))
    if MODEL in compared.work_differs:
        return tuple(table)
    speed_ups = tuple(
        UNKNOWN if scaled_run.speed_up is None else f"{scaled_run.speed_up.ratio:.3g}"
        for scaled_run in scaled
    )
    table.append(Column("speed-up", speed_ups, 4))
    if several:
        reached = tuple(format_share(scaled_run.efficiency) for scaled_run in scaled)
        table.append(Column("of ideal", reached, 3))
    return tuple(table)


def time_spent(compared: Comparison) -> tuple[RunTimes, ...]:
    return tuple(
        RunTimes(
            letter=letter(place),
            in_collectives=format_share(run.in_collectives),
            memory=UNKNOWN if run.memory is None else format_bytes(run.memory.most),
            seconds=run.mean.seconds,
            phases=phase_bars.measured_phases(run.phases),
        )
        for place, run in enumerate(compared.runs)
    )


def _bounded(level: Level) -> str:
    bound = level.bound
    wide = ""
    if bound is not None:
        wide = f" ±{format_share(bound)}" if bound < 1 else " ±>100 %"
    return f"{format_seconds(level.seconds)}{wide}"


def _rate(run: Run, unit: str) -> str:
    rate = run.rate(unit)
    return UNKNOWN if rate is None else format_number(rate)


TONES = {
    Change.FASTER: Tone.GOOD,
    Change.SLOWER: Tone.WARNING,
    Change.NONE: Tone.INFO,
    Change.UNKNOWN: Tone.UNKNOWN,
}
WORTHLESS = 0.5
"""A scaling law with a wider margin predicts nothing."""
WIDE = 0.2
"""A noise bound from which the comparison mentions it."""
SHOWN = 64
"""Characters of a setting's value."""


def letter(place: int) -> str:
    """A, B, …, Z, AA, …"""
    prefix, last = divmod(place, 26)
    return (letter(prefix - 1) if prefix else "") + chr(ord("A") + last)


def headline(compared: Comparison) -> Verdict:
    """Returns the first line: that the work differs, else the difference of two runs, or the best
    of more."""
    letters = [letter(place) for place in range(len(compared.runs))]
    together = f"{', '.join(letters[:-1])} and {letters[-1]}"
    if MODEL in compared.work_differs:
        sentence = f"{together} train different models: their speeds are not compared"
        return Verdict(Tone.UNKNOWN, sentence)
    found = _difference(compared)
    if PROGRAM in compared.work_differs:
        sentence = f"{together} run different programs. If these do the same work: {found.sentence}"
        return Verdict(found.tone, sentence)
    return found


def _difference(compared: Comparison) -> Verdict:
    if len(compared.pairs) == 1:
        return Verdict(TONES[compared.pairs[0].change], describe_pair(compared.pairs[0]))
    best = compared.best
    if best is None:
        return Verdict(Tone.UNKNOWN, compared.scaling.reason or "which run is best is unknown")
    return _describe_best(compared, best)


def describe_pair(pair: Pair) -> str:
    """`B is slower than A: 12 % more time per sample (10 to 14 %)`."""
    first, second = letter(pair.first), letter(pair.second)
    if pair.whole is None:
        return f"{second} and {first} cannot be compared: {pair.reason}"
    extent = f"per {pair.unit.removesuffix('s')}"
    if pair.change is Change.NONE:
        low, high = _signed(pair.whole.low), _signed(pair.whole.high)
        return f"no difference shown between {first} and {second} ({low} to {high} time {extent})"
    interval = pair.decided
    assert interval is not None
    sentence = f"{second} is {pair.change.value} than {first}: {_change(interval)} time {extent}"
    if interval is not pair.whole:
        return (
            f"{sentence} in the usual step ({_range(interval)}); pauses hide it in the whole time "
            f"({_signed(pair.whole.low)} to {_signed(pair.whole.high)})"
        )
    return f"{sentence} ({_range(interval)})"


def _change(interval: Interval) -> str:
    return f"{format_share(abs(interval.ratio - 1))} {'more' if interval.ratio > 1 else 'less'}"


def _range(interval: Interval) -> str:
    changes = sorted((abs(interval.low - 1), abs(interval.high - 1)))
    return f"{format_share(changes[0]).removesuffix(' %')} to {format_share(changes[1])}"


def _signed(ratio: float) -> str:
    return f"{'+' if ratio >= 1 else '-'}{format_share(abs(ratio - 1))}"


def _name_run(compared: Comparison, place: int) -> str:
    run = compared.runs[place]
    if len({run.ranks for run in compared.runs}) > 1:
        return f"{letter(place)} ({format_count(run.ranks, 'rank')})"
    return letter(place)


def _describe_best(compared: Comparison, best: Best) -> Verdict:
    """The best run, and whether noise could explain it."""
    reference, unit = compared.scaling.reference, compared.unit
    named, fastest = _name_run(compared, best.place), _name_run(compared, best.fastest)
    speed_up = compared.scaling.runs[best.place].speed_up
    if best.place == reference or speed_up is None:
        return Verdict(Tone.INFO, f"no run is shown to do more {unit} a second than {named}")
    times = format_number(speed_up.ratio)
    sentence = f"{named} does {times} times the {unit} a second of {_name_run(compared, reference)}"
    if best.place != best.fastest:
        sentence += f", and {fastest} is not shown to do more"
    if speed_up.shown:
        return Verdict(Tone.GOOD, sentence)
    return Verdict(Tone.INFO, f"{sentence}; noise may explain it")


def describe_runs(compared: Comparison) -> Iterator[tuple[str, str]]:
    """Returns the letter of each run, and its name with the settings that differ between runs."""
    for place, run in enumerate(compared.runs):
        yield letter(place), "; ".join([text.line(run.name), *_settings(compared, run)])


def _settings(compared: Comparison, run: Run) -> Iterator[str]:
    counts = {run.ranks for run in compared.runs}
    if len(counts) > 1:
        yield format_count(run.ranks, "rank")
    in_columns = {"strategy", "program"} if "strategy" in compared.differs else set()
    for name in (name for name in compared.differs if name not in in_columns):  # shown in a column
        value = run.settings.get(name)
        value_text = "not set" if value is None else text.cut(text.line(value), SHOWN)
        yield f"{text.cut(text.line(name), SHOWN)} {value_text}"


def costs(compared: Comparison) -> Iterator[str]:
    """The parts of each run's step that grew against the reference: where scaling is lost."""
    reference = compared.scaling.reference
    if len({run.ranks for run in compared.runs}) < 2:
        return
    before = _phase_seconds(compared.runs[reference])
    for place, run in enumerate(compared.runs):
        efficiency = compared.scaling.runs[place].efficiency
        times = run.ranks / compared.runs[reference].ranks
        if times == 1 or efficiency is None:
            continue
        phases = _phase_seconds(run)
        grown = [
            f"{name} from {format_seconds(before[name])} to {format_seconds(phases[name])}"
            for name in phases
            if name in before and abs(phases[name] - before[name]) > 0.02 * run.mean.seconds
        ]
        lost = f"; a step's {', '.join(grown)}" if grown else ""
        yield (
            f"{_name_run(compared, place)} reaches {format_share(efficiency)} of what "
            f"{format_number(times)} times the ranks of "
            f"{letter(reference)} could do{lost}"
        )


def loss(compared: Comparison) -> Iterator[str]:
    """When each run reached a loss that all runs reach."""
    target = compared.loss
    if target is None:
        return
    reached = [run.losses.seconds_to(target) if run.losses else None for run in compared.runs]
    by_run = ", ".join(
        f"{letter(place)} after {format_seconds(seconds)}" for place, seconds in enumerate(reached)
    )
    yield f"a loss of {format_number(target)} is reached by {by_run} (of one run each)"


def _phase_seconds(run: Run) -> dict[str, float]:
    """Part of a step -> seconds, as far as known."""
    wait, moving = run.phases.get("wait"), run.phases.get("communication")
    if run.in_collectives is None:
        return {}
    in_collectives = (wait or 0.0) + (moving or 0.0)
    parts = {"own work": run.mean.seconds - in_collectives}
    if wait is not None:
        parts["wait"] = wait
    if moving is not None or run.ranks == 1:
        parts["communication"] = moving or 0.0
    return parts


def laws(compared: Comparison) -> Iterator[str]:
    """Predicted step times at larger rank counts, by the scaling law."""
    for fitted in compared.laws:
        runs = [compared.runs[place] for place in fitted.places]
        letters = ", ".join(letter(place) for place in fitted.places)
        if fitted.law is None:
            if len({run.ranks for run in runs}) > 2:
                yield f"no scaling law for {letters}: {fitted.reason}"
            continue
        law = fitted.law
        if law.margin > WORTHLESS:
            yield (
                f"no scaling law fits {letters}: it misses one of them by "
                f"{format_share(law.margin)}, so it predicts nothing for more ranks"
            )
            continue
        scaled = "strong" if law.growth is Growth.STRONG else "weak"
        ahead = "; ".join(
            f"{format_count(point.ranks, 'rank')}: a step of {format_seconds(point.total)}"
            + _rate_ahead(compared, runs, point.ranks, point.total, law.growth)
            for point in law.predicted
        )
        place = " on cores that ranks share" if any(run.shared for run in runs) else ""
        yield (
            f"if the trend continues{place} ({scaled} scaling, fitted to {letters}, within "
            f"{format_share(law.margin)}): {ahead}"
        )


def _rate_ahead(
    compared: Comparison, runs: Sequence[Run], ranks: int, seconds: float, growth: Growth
) -> str:
    work = runs[0].work.of(compared.unit)
    if work is None or seconds <= 0:
        return ""
    if growth is Growth.WEAK:
        work *= ranks / runs[0].ranks
    return f", {format_number(work / seconds)} {compared.unit}/s"


def _shared_cores(runs: Sequence[Run]) -> Iterator[str]:
    """Runs whose ranks share cores, equal ones in one sentence."""
    letters_by_sentence: dict[str, list[str]] = {}
    for place, run in enumerate(runs):
        for crowd in run.shared:
            ranks, threads = (
                format_count(crowd.ranks, "rank"),
                format_count(crowd.threads, "thread"),
            )
            crowding = f"{ranks} with {threads} share {format_number(crowd.cores)} cores"
            letters_by_sentence.setdefault(crowding, []).append(letter(place))
    for crowding, letters in letters_by_sentence.items():
        subject = "its step time shows" if len(letters) == 1 else "their step times show"
        yield (
            f"{', '.join(letters)}: {crowding}: {subject} the limits of this machine, not how the "
            "job scales if each rank has its own device"
        )


def _unsteady(run: Run) -> bool:
    bound = run.mean.bound
    return bound is not None and bound > WIDE


def further_sentences(compared: Comparison) -> Iterator[str]:
    """All sentences below the figures."""
    yield from gains(compared)
    yield from notes(compared)


def gains(compared: Comparison) -> Iterator[str]:
    """Sentences about lost scaling, treatments, reached losses and larger rank counts."""
    yield from costs(compared)
    yield from proofs(compared)
    yield from loss(compared)
    yield from laws(compared)


def proofs(compared: Comparison) -> Iterator[str]:
    """What trials had shown about the treatments that runs were started with."""
    for place, run in enumerate(compared.runs):
        if run.applied is not None:
            yield f"{letter(place)} was started with {describe_applied(run.applied)}"


def notes(compared: Comparison) -> Iterator[str]:
    """Caveats: noise, shared cores, and what this comparison cannot show."""
    yield from _shared_cores(compared.runs)
    unsteady = [letter(place) for place, run in enumerate(compared.runs) if _unsteady(run)]
    if unsteady:
        yield (
            f"the steps of {', '.join(unsteady)} were longer at some times than at others, which "
            "widens the bounds: run more steps, or use an otherwise idle machine"
        )
    for place, run in enumerate(compared.runs):
        if run.echoing:
            verb = "sees" if run.echoing == 1 else "see"
            yield (
                f"{letter(place)}: {run.echoing} of {format_count(run.ranks, 'rank')} {verb} the "
                "same batches as another one: such samples count once"
            )
    if compared.scaling.reason:
        yield f"no speed-up is computed: {compared.scaling.reason}"
    for place, run in enumerate(compared.runs):
        if run.in_collectives_reason:
            yield f"{letter(place)}: {run.in_collectives_reason}"
    for reason in dict.fromkeys(r.memory_reason for r in compared.runs if r.memory_reason):
        yield f"memory is unknown: {reason}"
    kinds = {run.memory.kind for run in compared.runs if run.memory is not None}
    if kinds:
        yield f"memory: the largest of any rank, {', '.join(sorted(kinds))}"
    for excluded in compared.left_out:
        yield f"{text.line(excluded.name)} is left out: {excluded.reason}"
    if compared.spread is None:
        yield (
            "bounds cover only the noise within a run. On a shared machine, two runs of the same "
            "script can differ by more: compare two runs of each to see by how much"
        )
    else:
        yield (
            f"runs with equal settings differ by up to {format_share(compared.spread)}: smaller "
            "differences between other runs may be chance"
        )
