"""A session of trials: the job as it is, each treatment, then those that help together.

A treatment that can be switched while the job runs is switched on and off in one run, and if it
seems to matter, in a second one with on and off exchanged. If that does not work out, or it cannot
be switched, whole runs follow each other in the order A B B A C C A …: every treatment lies between
two runs of the job as it is, and is run twice. A treatment that seems to matter but is not certain
is run in a second such block, and one that seems to help in more of them, with what is left of the
budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mgpu_doctor.advice.treatment import Effect, Value
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS, describe_values
from mgpu_doctor.analysis.comparing.step_time_noise import Level, mean_level
from mgpu_doctor.analysis.trials.paired_effect import (
    LEAST_GAIN,
    Block,
    Noise,
    TimeSaved,
    estimate_saving,
    pool_noise,
)
from mgpu_doctor.analysis.trials.switched_effect import (
    BLOCKS,
    SwitchedBlocks,
    estimate_switched,
    join_losses,
)
from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.analysis.trials.trial_verdict import (
    LossChange,
    Verdict,
    compare_losses,
    is_settled,
    judge,
)
from mgpu_doctor.case.model import Case
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.treat.trial_runner import Problem, Trial, TrialFailure

FIRST_BLOCKS, MOST_BLOCKS, LOOKS = 2, 8, 4
"""Blocks per treatment before the next one is tried, and with what is left of the budget; and how
often its result is looked at: after 1, 2, 4 and 8 blocks."""
MOST_SWITCHED, SWITCHED_LOOKS = 4, 2
"""The same of runs in which a treatment is switched: two show something, and then four."""
HOPE = 0.5
"""Share of the half interval after `MOST_BLOCKS` that a saving must reach to be looked at again. A
choice: of treatments without any effect one in six does."""
_RUNS_PER_BLOCK = 3
_SWITCHED_SECONDS = 1.5
_LEAST_SWITCHED = 6
"""Length of the blocks of a run in which a treatment is switched: so many seconds, at least so many
steps, at most half of a run's. Choices."""
_SLOWER, _MORE = 3.0, 30.0
"""A trial is given up after this multiple of the first one's time, and these seconds."""


class RunTrial(Protocol):
    """Runs one trial, as `TrialRunner.run`."""

    def __call__(
        self,
        values: Mapping[str, Value],
        *,
        steps: int | None,
        limit: float,
        blocks: SwitchedBlocks | None = None,
        keeps_case: bool = False,
    ) -> Trial: ...


class BaselineError(Exception):
    """The job as it is could not be measured; the message is one clear sentence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What trials of a treatment, or of several together, showed."""

    values: Mapping[str, Value]
    verdict: Verdict
    reason: str | None = None
    """Why it could not be measured, a clause."""
    saved: TimeSaved | None = None
    loss: LossChange | None = None
    """None: no loss was seen."""
    memory_bytes: int | None = None
    """Peak memory of the rank with the most; None: unknown."""
    sites: tuple[str, ...] = ()
    """The script's lines whose calls were changed, as `file:line`."""
    runs: int = 0
    switched: bool = False
    """Whether it was switched on and off within its runs."""


@dataclass(slots=True)
class _Tried:
    """The trials of one treatment so far."""

    values: Mapping[str, Value]
    blocks: list[tuple[TrialRun, TrialRun, TrialRun, TrialRun]] = field(default_factory=list)
    switched: list[TrialRun] = field(default_factory=list)
    """Runs in which it was switched on and off, in inverse order in the second one."""
    block: int = 0
    """Steps per block of these runs."""
    failure: TrialFailure | None = None
    unfinished: str = ""
    """Why there are not more trials, a clause."""
    sites: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Blocks, or runs in which it was switched."""
        return len(self.switched) or len(self.blocks)

    @property
    def treated(self) -> list[TrialRun]:
        return [run for block in self.blocks for run in block[1:3]]


class Session:
    """Measures the job, then treatments. `report` is called with what is being done and the
    seconds of the budget that are left."""

    def __init__(
        self,
        run: RunTrial,
        *,
        budget: float,
        steps: int | None,
        clock: Callable[[], float],
        report: Callable[[str, float], None],
    ) -> None:
        self._run = run
        self._clock = clock
        self._report = report
        self._ends = clock() + budget
        self.steps = steps
        """Measured steps per run; None until the first run has decided."""
        self.plain: list[TrialRun] = []
        """Runs of the job as it is, in order."""
        self._tried: list[_Tried] = []
        self._longest = 0.0
        self._levels: dict[int, Level] = {}
        """By the id of the run; all runs are kept."""

    def measure_baseline(self) -> Case | None:
        """Runs the job twice as it is. Returns its case of the first run while it ran. Raises
        `BaselineError`."""
        self._report("the job as it is", self._left())
        first = self._run({}, steps=self.steps, limit=self._left(), keeps_case=True)
        if isinstance(first.result, TrialFailure):
            raise BaselineError(f"the job cannot be tried: {first.result.reason}.")
        self._longest = first.seconds
        self.steps = len(first.result.seconds)
        self.plain.append(first.result)
        second = self._run_once({}).result
        if isinstance(second, TrialFailure):
            raise BaselineError(f"the job ran once, and failed the second time: {second.reason}.")
        self.plain.append(second)
        return first.case

    def has_time(self) -> bool:
        """Whether the budget lasts for another block."""
        return self._left() >= _RUNS_PER_BLOCK * self._longest

    def try_values(self, values: Mapping[str, Value]) -> Outcome:
        """Tries treatments together, in as many blocks as needed and the budget allows."""
        tried = _Tried(values)
        self._tried.append(tried)
        switches = all(TREATMENTS[name].switches for name in values)
        measured = switches and self._look_after_each(tried, self._add_switched)
        if not measured and tried.failure is None:
            tried.switched.clear()
            self._look_after_each(tried, self._add_block)
        return self._judge(tried)

    def settle(self, *, keeps_time: bool = False) -> None:
        """Tries again what seems to help but is not certain, the largest saving first, with what is
        left of the budget. `keeps_time`: leaves enough to try what helps together."""
        kept = FIRST_BLOCKS * _RUNS_PER_BLOCK * self._longest if keeps_time else 0.0
        self._ends -= kept
        while uncertain := [tried for tried in self._tried if self._may_help(tried)]:
            tried = max(uncertain, key=lambda each: _share(self._judge(each)))
            add = self._add_switched if tried.switched else self._add_block
            wanted = 2 * tried.count
            while tried.count < wanted and add(tried):
                pass
            if tried.count < wanted and tried.failure is None:
                break  # there is no time left
        self._ends += kept

    def _may_help(self, tried: _Tried) -> bool:
        """Whether more trials are likely to show that it helps."""
        most = MOST_SWITCHED if tried.switched else MOST_BLOCKS
        outcome = self._judge(tried)
        saved = outcome.saved
        if outcome.verdict is not Verdict.NO_DIFFERENCE or saved is None or tried.count >= most:
            return False
        reach = (saved.share - saved.low) * math.sqrt(tried.count / most)
        return saved.share >= max(LEAST_GAIN, HOPE * reach)

    def _look_after_each(self, tried: _Tried, add: Callable[[_Tried], bool]) -> bool:
        """Adds trials until the verdict is settled; False if there is none."""
        saved = None
        for _ in range(FIRST_BLOCKS):
            if not add(tried):
                break
            saved = self._estimate(tried)
            if saved is None or is_settled(saved):
                break
        return saved is not None

    def outcomes(self) -> list[Outcome]:
        """The outcomes so far, judged by the noise of all runs so far."""
        return [self._judge(tried) for tried in self._tried]

    def combine(self, outcomes: Sequence[Outcome]) -> dict[str, Value]:
        """The values of all treatments that help, the best first; those that a better one excludes
        are left out."""
        combined: dict[str, Value] = {}
        for outcome in sorted(outcomes, key=_share, reverse=True):
            slots = {TREATMENTS[name].slot for name in combined} - {None}
            if outcome.verdict is Verdict.HELPS and slots.isdisjoint(
                TREATMENTS[name].slot for name in outcome.values
            ):
                combined |= outcome.values
        return combined

    @property
    def noise(self) -> Noise | None:
        """How much equal runs differ."""
        pairs = [
            (self._level(block[1]), self._level(block[2]))
            for tried in self._tried
            for block in tried.blocks
        ]
        return pool_noise([self._level(run) for run in self.plain], pairs)

    @property
    def baseline(self) -> Level:
        """The mean step of the job as it is, of all runs."""
        levels = [self._level(run) for run in self.plain]
        mean = sum(level.seconds for level in levels) / len(levels)
        noise = self.noise
        error = None if noise is None else (noise.variance / len(levels)) ** 0.5
        return Level(mean, error, noise.freedom if noise else 1.0)

    def _level(self, run: TrialRun) -> Level:
        known = self._levels.get(id(run))
        if known is None:
            known = self._levels[id(run)] = mean_level(run.seconds[: self.steps])
        return known

    def _left(self) -> float:
        return self._ends - self._clock()

    def _run_once(self, values: Mapping[str, Value]) -> Trial:
        more = max((TREATMENTS[name].start_seconds for name in values), default=0.0)
        limit = _SLOWER * self._longest + _MORE + more
        trial = self._run(values, steps=self.steps, limit=limit)
        if isinstance(trial.result, TrialRun):
            self.steps = min(self.steps or len(trial.result.seconds), len(trial.result.seconds))
            self._longest = max(self._longest, trial.seconds)
        return trial

    def _run_in_block(self, tried: _Tried, values: Mapping[str, Value]) -> TrialRun | TrialFailure:
        """A run with or without the treatment. One that fails is repeated: the job may fail now and
        then."""
        for _ in range(2):
            self._report(describe_values(values) if values else "the job as it is", self._left())
            trial = self._run_once(values)
            self._note_sites(tried, trial)
            result = trial.result
            if isinstance(result, TrialRun) or result.problem is Problem.NOT_APPLIED:
                break
            if self._left() < self._longest:
                break
        return result

    def _find_block(self) -> int:
        """Steps per block of a run in which a treatment is switched."""
        seconds, steps = self._level(self.plain[0]).seconds, self.steps or 0
        wanted = min(steps // 2, math.ceil(_SWITCHED_SECONDS / seconds))
        return max(_LEAST_SWITCHED, wanted)

    def _add_switched(self, tried: _Tried) -> bool:
        """Runs the job once and switches the treatment on and off; False if there was no time, or
        the run does not show anything."""
        block = tried.block = tried.block or self._find_block()
        steps = BLOCKS * block
        expected = self._longest + steps * self._level(self.plain[0]).seconds
        pair = 2 - len(tried.switched) % 2
        if self._left() < expected * pair:
            return False
        self._report(describe_values(tried.values), self._left())
        limit = _SLOWER * expected + _MORE
        blocks = SwitchedBlocks(block, inverted=bool(len(tried.switched) % 2))
        trial = self._run(tried.values, steps=steps, limit=limit, blocks=blocks)
        self._note_sites(tried, trial)
        if isinstance(trial.result, TrialFailure):
            if trial.result.problem is Problem.NOT_APPLIED:
                tried.failure = trial.result
            return False
        tried.switched.append(trial.result)
        return True

    def _note_sites(self, tried: _Tried, trial: Trial) -> None:
        sites = (site for each in trial.treated for site in each.sites)
        tried.sites = tried.sites or tuple(dict.fromkeys(sites))

    def _add_block(self, tried: _Tried) -> bool:
        """Runs a block; False if there was no time, or it could not be completed."""
        if not self.has_time():
            runs = f"{_RUNS_PER_BLOCK} runs of {format_seconds(self._longest)} each"
            tried.unfinished = f"what is left of the budget is too short for {runs}"
            return False
        treated: list[TrialRun] = []
        before = self.plain[-1]
        for _ in range(2):
            result = self._run_in_block(tried, tried.values)
            if isinstance(result, TrialFailure):
                tried.failure = result
                return False
            treated.append(result)
        after = self._run_in_block(tried, {})
        if isinstance(after, TrialFailure):
            tried.unfinished = f"the job as it is failed twice: {after.reason}"
            return False
        self.plain.append(after)
        tried.blocks.append((before, treated[0], treated[1], after))
        return True

    def _estimate(self, tried: _Tried) -> TimeSaved | None:
        if tried.switched:
            runs = [run.seconds for run in tried.switched]
            return estimate_switched(runs, tried.block, looks=SWITCHED_LOOKS)
        noise = self.noise
        if noise is None or not tried.blocks:
            return None
        blocks = [Block(*(self._level(run) for run in block)) for block in tried.blocks]
        return estimate_saving(blocks, noise, looks=LOOKS)

    def _judge(self, tried: _Tried) -> Outcome:
        runs = len(tried.switched) or 2 * len(tried.blocks)
        if tried.failure is not None:
            fits = tried.failure.problem is not Problem.NOT_APPLIED
            verdict = Verdict.FAILS if fits else Verdict.DOES_NOT_FIT
            return Outcome(
                tried.values, verdict, tried.failure.reason, sites=tried.sites, runs=runs
            )
        saved = self._estimate(tried)
        if saved is None:
            return Outcome(tried.values, Verdict.UNTRIED, tried.unfinished)
        runs_with = tried.switched or tried.treated
        plain = [run.losses for run in self.plain if run.losses is not None]
        treated = [run.losses for run in runs_with if run.losses is not None]
        if tried.switched:
            plain, treated = join_losses(plain, treated, tried.block)
        loss = compare_losses(
            plain,
            treated,
            max((TREATMENTS[name].effect for name in tried.values), key=list(Effect).index),
        )
        memory = [run.memory_bytes for run in runs_with if run.memory_bytes is not None]
        return Outcome(
            tried.values,
            judge(saved, loss),
            saved=saved,
            loss=loss,
            memory_bytes=max(memory, default=None),
            sites=tried.sites,
            runs=runs,
            switched=bool(tried.switched),
        )


def _share(outcome: Outcome) -> float:
    return outcome.saved.share if outcome.saved is not None else 0.0
