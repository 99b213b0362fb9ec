"""A session of trials: the job as it is, each treatment, then those that help together.

A treatment that can be switched while the job runs is switched on and off in one run, and if it
seems to matter, in a second one with on and off exchanged. If that does not work out, or it cannot
be switched, whole runs follow each other in the order A B B A C C A …: every treatment lies between
two runs of the job as it is, and is run twice. A treatment that seems to matter but is not certain
is run in a second such block, and one that seems to help in more of them, with what is left of the
budget. A small budget is for the first block: without it nothing is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from mgpu_doctor.advice.treatment import Effect, Value
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS, describe_values
from mgpu_doctor.analysis.comparing.step_time_noise import Level, mean_level
from mgpu_doctor.analysis.trials.memory_effect import MemoryChange, compare_memory
from mgpu_doctor.analysis.trials.paired_effect import (
    LEAST_GAIN,
    Block,
    Noise,
    Saving,
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
    Verdict,
    compare_losses,
    is_settled,
    judge,
)
from mgpu_doctor.case.model import Case
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.treat.trial_outcome import Outcome, Tried
from mgpu_doctor.treat.trial_runner import Problem, Trial, TrialFailure

FIRST_BLOCKS, MOST_BLOCKS, LOOKS = 2, 8, 4
"""Blocks per treatment before the next one is tried, and with what is left of the budget; and how
often its result is looked at: after 1, 2, 4 and 8 blocks. Fewer if the budget has no time for
them."""
MOST_SWITCHED, SWITCHED_LOOKS = 4, 2
"""The same of runs in which a treatment is switched: two show something, and then four."""
HOPE = 0.5
"""Share of the half interval after `MOST_BLOCKS` that a saving must reach to be looked at again. A
choice: of treatments without any effect one in six does."""
_RUNS_PER_BLOCK = 3
_WHOLE = 30.0
"""Seconds to which the budget that is proposed is rounded up."""
_SWITCHED_SECONDS = 1.5
_LEAST_SWITCHED = 6
"""Length of the blocks of a run in which a treatment is switched: so many seconds, at least so many
steps, at most half of a run's. Choices."""
_SLOWER, _MORE = 3.0, 30.0
"""A trial is given up after this multiple of the longest one's time, and these seconds."""
INTERRUPTED, NOT_REACHED = "the trials ended during its first runs", "the trials ended first"
"""Why a treatment was not measured, clauses."""


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
    """The job as it is could not be measured; the message is one clear sentence. `first`: why its
    first run measured nothing; None: it did, and the second one failed."""

    def __init__(self, sentence: str, first: TrialFailure | None = None) -> None:
        super().__init__(sentence)
        self.first = first


class Session:
    """Measures the job, then treatments. `report` is called with what is being done and the
    seconds of the budget that are left. `by_memory`: treatments are to save memory, not time; all
    are tried in whole runs, because a run in which one is switched has one peak."""

    def __init__(
        self,
        run: RunTrial,
        *,
        budget: float,
        steps: int | None,
        clock: Callable[[], float],
        report: Callable[[str, float], None],
        by_memory: bool = False,
    ) -> None:
        self._run = run
        self._by_memory = by_memory
        self._clock = clock
        self._report = report
        self._began = clock()
        self._ends = self._began + budget
        self.steps = steps
        """Measured steps per run; None until the first run has decided."""
        self.plain: list[TrialRun] = []
        """Runs of the job as it is, in order."""
        self._tried: list[Tried] = []
        self._longest = 0.0
        self._looks = LOOKS
        self._levels: dict[int, Level] = {}
        """By the id of the run; all runs are kept."""

    def measure_baseline(self, plan: Callable[[Case], None] = lambda _: None) -> None:
        """Runs the job twice as it is, or once if there is no time for a second run and a block:
        each block ends with another one. `plan` is called after the first run, with the case of the
        job while it ran. Raises `BaselineError`."""
        self._report("the job as it is", self._left())
        first = self._run({}, steps=self.steps, limit=self._left(), keeps_case=True)
        if isinstance(first.result, TrialFailure):
            why = first.result.reason
            if first.result.problem is Problem.TOO_SLOW:
                why += ": give it a larger --budget, as a treatment takes four such runs"
            raise BaselineError(f"the job cannot be tried: {why}.", first.result)
        self._longest = first.seconds
        self.steps = len(first.result.seconds)
        self.plain.append(first.result)
        if first.case is not None:
            plan(first.case)
        if self._left() >= (1 + _RUNS_PER_BLOCK) * self._longest:
            second = self._run_once({}).result
            if isinstance(second, TrialFailure):
                raise BaselineError(
                    f"the job ran once, and failed the second time: {second.reason}."
                )
            self.plain.append(second)
        blocks = int(self._left() / (_RUNS_PER_BLOCK * self._longest))
        self._looks = min(LOOKS, max(1, blocks.bit_length()))

    def has_time(self) -> bool:
        """Whether the budget lasts for another block."""
        return self._left() >= _RUNS_PER_BLOCK * self._longest

    def try_values(self, values: Mapping[str, Value]) -> Outcome:
        """Tries treatments together, in as many blocks as needed and the budget allows."""
        tried = Tried(values)
        self._tried.append(tried)
        switches = not self._by_memory and all(TREATMENTS[name].switches for name in values)
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
            tried = max(uncertain, key=lambda each: self._judge(each).gain)
            add = self._add_switched if tried.switched else self._add_block
            wanted = 2 * tried.count
            while tried.count < wanted and add(tried):
                pass
            if tried.count < wanted and tried.failure is None:
                break  # there is no time left
        self._ends += kept

    def _may_help(self, tried: Tried) -> bool:
        """Whether more trials are likely to show that it helps."""
        most = MOST_SWITCHED if tried.switched else self._most_blocks
        if tried.count >= most:
            return False
        outcome = self._judge(tried)
        saved = outcome.decisive
        if outcome.verdict is not Verdict.NO_DIFFERENCE or saved is None:
            return False
        reach = (saved.share - saved.low) * math.sqrt(tried.count / most)
        return saved.share >= max(LEAST_GAIN, HOPE * reach)

    def _look_after_each(self, tried: Tried, add: Callable[[Tried], bool]) -> bool:
        """Adds trials until the verdict is settled; False if there is none."""
        saved = None
        for _ in range(FIRST_BLOCKS):
            if not add(tried):
                break
            saved = self._estimate(tried)
            if saved is None or is_settled(self._judge(tried).decisive or saved):
                break
            if not tried.switched and tried.count >= self._most_blocks:
                break
        return saved is not None

    @property
    def _most_blocks(self) -> int:
        """Blocks of a treatment, which double from one look at them to the next."""
        return min(MOST_BLOCKS, int(2 ** (self._looks - 1)))

    def outcomes(self) -> list[Outcome]:
        """The outcomes so far, judged by the noise of all runs so far."""
        return [self._judge(tried) for tried in self._tried]

    def combine(self, outcomes: Sequence[Outcome]) -> dict[str, Value]:
        """The values of all treatments that help, the best first; those that a better one excludes
        are left out, such as another value of it."""
        combined: dict[str, Value] = {}
        for outcome in sorted(outcomes, key=lambda each: each.gain, reverse=True):
            taken = {TREATMENTS[name].slot or name for name in combined}
            if outcome.verdict is Verdict.HELPS and taken.isdisjoint(
                TREATMENTS[name].slot or name for name in outcome.values
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
        trial = self._run_within(limit, values, steps=self.steps)
        if isinstance(trial.result, TrialRun):
            self.steps = min(self.steps or len(trial.result.seconds), len(trial.result.seconds))
            self._longest = max(self._longest, trial.seconds)
        return trial

    def _run_within(
        self,
        limit: float,
        values: Mapping[str, Value],
        *,
        steps: int | None,
        blocks: SwitchedBlocks | None = None,
    ) -> Trial:
        """Runs a trial for so many seconds at most, and not for longer than the budget lasts."""
        left = self._left()
        trial = self._run(values, steps=steps, limit=min(limit, left), blocks=blocks)
        result = trial.result
        if isinstance(result, TrialRun) or result.problem is not Problem.TOO_SLOW or limit <= left:
            return trial
        reason = f"the budget was used up: {result.reason}"
        return replace(trial, result=TrialFailure(Problem.OVER_BUDGET, reason))

    def _run_in_block(self, tried: Tried, values: Mapping[str, Value]) -> TrialRun | TrialFailure:
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

    def _add_switched(self, tried: Tried) -> bool:
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
        trial = self._run_within(limit, tried.values, steps=steps, blocks=blocks)
        self._note_sites(tried, trial)
        if isinstance(trial.result, TrialFailure):
            if trial.result.problem is Problem.NOT_APPLIED:
                tried.failure = trial.result
            elif trial.result.problem is Problem.OVER_BUDGET:
                tried.unfinished = trial.result.reason
            return False
        tried.switched.append(trial.result)
        return True

    def _note_sites(self, tried: Tried, trial: Trial) -> None:
        sites = (site for each in trial.treated for site in each.sites)
        tried.sites = tried.sites or tuple(dict.fromkeys(sites))

    def _add_block(self, tried: Tried) -> bool:
        """Runs a block; False if there was no time, or it could not be completed."""
        if not self.has_time():
            tried.unfinished = tried.unfinished or self._explain_budget()
            return False
        treated: list[TrialRun] = []
        before = self.plain[-1]
        for _ in range(2):
            result = self._run_in_block(tried, tried.values)
            if isinstance(result, TrialFailure):
                if result.problem is Problem.OVER_BUDGET:
                    tried.unfinished = result.reason
                else:
                    tried.failure = result
                return False
            treated.append(result)
        after = self._run_in_block(tried, {})
        if isinstance(after, TrialFailure):
            tried.unfinished = f"the job as it is could not be measured again: {after.reason}"
            return False
        self.plain.append(after)
        tried.blocks.append((before, treated[0], treated[1], after))
        return True

    def _explain_budget(self) -> str:
        """That there is no time for a block, and how much time there should be."""
        needed = self._clock() - self._began + 1.1 * _RUNS_PER_BLOCK * self._longest
        enough = math.ceil(needed / _WHOLE) * _WHOLE
        runs = f"{_RUNS_PER_BLOCK} runs of {format_seconds(self._longest)} each"
        return (
            f"what is left of the budget is too short for {runs}; --budget {enough:.0f}s is enough "
            "for the next treatment"
        )

    def _estimate(self, tried: Tried) -> Saving | None:
        if tried.switched:
            runs = [run.seconds for run in tried.switched]
            return estimate_switched(runs, tried.block, looks=SWITCHED_LOOKS)
        noise = self.noise
        if noise is None or not tried.blocks:
            return None
        blocks = [Block(*(self._level(run) for run in block)) for block in tried.blocks]
        return estimate_saving(blocks, noise, looks=self._looks)

    def _compare_memory(self, tried: Tried) -> MemoryChange | None:
        """None: it is unknown of some run, or known of the host for some and of GPUs for others."""
        runs = [*self.plain, *tried.treated]
        if None in {run.memory_bytes for run in runs} or len({r.is_gpu_memory for r in runs}) > 1:
            return None
        blocks = [tuple(run.memory_bytes or 0 for run in block) for block in tried.blocks]
        plain = [run.memory_bytes or 0 for run in self.plain]
        return compare_memory([(a, b, c, d) for a, b, c, d in blocks], plain, self._looks)

    def _judge(self, tried: Tried) -> Outcome:
        runs = len(tried.switched) or 2 * len(tried.blocks)
        if tried.failure is not None:
            fits = tried.failure.problem is not Problem.NOT_APPLIED
            verdict = Verdict.FAILS if fits else Verdict.DOES_NOT_FIT
            return Outcome(
                tried.values, verdict, tried.failure.reason, sites=tried.sites, runs=runs
            )
        saved = self._estimate(tried)
        if saved is None:
            return Outcome(tried.values, Verdict.UNTRIED, tried.unfinished or INTERRUPTED)
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
        memory = self._compare_memory(tried)
        peaks = [run.memory_bytes for run in runs_with if run.memory_bytes is not None]
        decisive = saved if not self._by_memory else memory.saved if memory is not None else None
        return Outcome(
            tried.values,
            Verdict.UNTRIED if decisive is None else judge(decisive, loss),
            reason="its memory is unknown" if decisive is None else None,
            saved=saved,
            loss=loss,
            memory_bytes=max(peaks, default=None),
            memory=memory,
            by_memory=self._by_memory,
            sites=tried.sites,
            runs=runs,
            switched=bool(tried.switched),
        )
