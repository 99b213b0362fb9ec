"""A simulated job for sessions of trials: its step times, its noise, and what treatments do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mgpu_doctor.advice.treatment import Value
from mgpu_doctor.analysis.trials.switched_effect import SwitchedBlocks
from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.case.process_metadata import Treated
from mgpu_doctor.treat.trial_runner import FIRST_STEP, Problem, Trial, TrialFailure

MEMORY = 1 << 30
"""Peak memory without treatments, in bytes; equal runs differ by 0.5 %."""
_REACH = 20
"""Steps over which simulated noise is correlated."""


@dataclass
class SimulatedJob:
    """`run` is what a session calls. Times in seconds; noise as a share of the step time."""

    random: np.random.Generator
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Step time with the treatment / without, by its name."""
    failing: Mapping[str, TrialFailure] = field(default_factory=dict)
    between_runs: float = 0.01
    within_runs: float = 0.05
    alike: float = 0.5
    """Autocorrelation of neighbouring steps."""
    stalls: float = 0.01
    """Share of steps that take three times as long."""
    drift: float = 0.0
    """Share by which each run is slower than the one before."""
    memory_ratios: Mapping[str, float] = field(default_factory=dict)
    """Peak memory with the treatment / without, by its name."""
    loss_change: Mapping[str, float] = field(default_factory=dict)
    seeded: bool = True
    step_seconds: float = 0.1
    recorded: Sequence[Sequence[float]] = ()
    """Step times of real runs of one job, to draw from instead."""
    most_steps: int = 10**6
    """The job ends after these measured steps."""
    pause_every: int = 0
    """One in so many steps takes five times as long, as with a checkpoint; 0: none."""
    hanging: Collection[str] = ()
    """Treatments with which the job makes no step."""
    failing_at: Collection[int] = ()
    """The runs of these numbers crash, from 0."""
    now: float = 0.0
    ran: list[dict[str, Value]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def run(
        self,
        values: Mapping[str, Value],
        *,
        steps: int | None,
        limit: float,
        blocks: SwitchedBlocks | None = None,
        keeps_case: bool = False,  # noqa: ARG002 - the signature of a runner
    ) -> Trial:
        self.ran.append(dict(values))
        if not values.keys().isdisjoint(self.hanging):
            self.now += limit
            return Trial(TrialFailure(Problem.TOO_SLOW, "it made 0 of 70 steps in time"), limit)
        self.now += 10.0
        failure = next((self.failing[name] for name in values if name in self.failing), None)
        if len(self.ran) - 1 in self.failing_at:
            failure = CRASH
        if failure is not None:
            return Trial(failure, 10.0)
        ratio = float(np.prod([self.ratios.get(name, 1.0) for name in values]))
        count = min(steps or 60, self.most_steps)
        on = np.ones(count, bool) if blocks is None else blocks.treated_steps(count)
        seconds = self._draw(count) * np.where(on, ratio, 1.0) * (1 + self.drift) ** len(self.ran)
        if self.pause_every:
            seconds[:: self.pause_every] *= 5.0
        change = np.where(on, sum(self.loss_change.get(name, 0.0) for name in values), 0.0)
        losses = 2.0 - np.arange(count) / 59 + change
        if not self.seeded:
            losses = losses + self.random.normal(0, 0.1, len(seconds))
        treated = tuple(Treated(name=name, changed=1, sites=("train.py:3",)) for name in values)
        memory = float(np.prod([self.memory_ratios.get(name, 1.0) for name in values]))
        peak = round(MEMORY * memory * np.exp(self.random.normal(0, 0.005)))
        return Trial(TrialRun(FIRST_STEP, seconds, losses, peak), 10.0, treated)

    def _draw(self, steps: int) -> np.ndarray:
        if self.recorded:
            runs = [np.array(self.recorded[int(self.random.integers(len(self.recorded)))])]
            while sum(map(len, runs)) < steps:
                runs.append(runs[0])
            return np.concatenate(runs)[:steps]
        weights = (1 - self.alike**2) ** 0.5 * self.alike ** np.arange(_REACH)
        noise = self.random.normal(0, self.within_runs, steps + _REACH - 1)
        noise = np.convolve(noise, weights, "valid")
        stalls = np.where(self.random.random(steps) < self.stalls, 3.0, 1.0)
        whole = np.exp(self.random.normal(0, self.between_runs))
        return np.asarray(self.step_seconds * whole * np.exp(noise) * stalls)


CRASH = TrialFailure(Problem.CRASHED, "rank 0 failed")
NOT_APPLIED = TrialFailure(Problem.NOT_APPLIED, "the script makes no call that it changes")
