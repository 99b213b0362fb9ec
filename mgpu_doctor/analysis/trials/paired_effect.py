"""How much time a treatment saves, and how sure that is, from runs in the order A B B A. Pure.

A is the job as it is, B with the treatment. Each run yields one number, the logarithm of its mean
step time. The order cancels a machine that drifts evenly. Two kinds of noise are kept apart:

- Within a run, neighbouring steps are correlated. Its mean has a standard error by batch means
  (Schmeiser, "Batch Size Effects in the Analysis of Simulation Output", Operations Research 30(3),
  1982), widened by the batches' own autocorrelation: `step_time_noise`.
- Between runs of equal settings, memory layout, placement and neighbours differ, which no single
  run shows. All equal runs of a session are pooled: successive runs of A by their mean square
  difference (von Neumann et al., "The Mean Square Successive Difference", Annals of Mathematical
  Statistics 12(2), 1941), so that drift does not count, and pairs of B.

The larger of the two decides. The interval uses Student's t with the degrees of freedom of the
pooled runs, and grows with the number of times that the runs so far are examined (Bonferroni).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from mgpu_doctor.analysis.comparing.step_time_noise import Level

FALSE_HELPS = 0.025
"""Share of the treatments without any effect that are said to help, at most: one side of an
interval of 95 %."""
LEAST_GAIN = 0.02
"""Share of the step time or memory that a treatment must save to be worth a line. A choice."""

DISSENT = 1 / 4
"""Share of the pairs that may point in the other direction. A choice."""


@dataclass(frozen=True, slots=True)
class Block:
    """Four runs in the order A B B A."""

    before: Level
    first: Level
    second: Level
    after: Level


@dataclass(frozen=True, slots=True)
class Noise:
    """How much the logarithm of a run's mean step time varies between equal runs."""

    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Saving:
    """The share of the step time, or of the memory, that a treatment saves, and its interval;
    negative: it costs as much."""

    share: float
    low: float
    high: float
    pairs_agree: bool
    """Whether nearly all pairs with and without the treatment differ in one direction."""

    @property
    def is_gain(self) -> bool:
        """Whether it certainly saves what is worth a line."""
        return self.pairs_agree and self.low > 0 and self.share >= LEAST_GAIN

    @property
    def is_loss(self) -> bool:
        """Whether it certainly costs what is worth a line."""
        return self.pairs_agree and self.high < 0 and self.share <= -LEAST_GAIN


def pool_noise(baselines: Sequence[Level], treated: Sequence[tuple[Level, Level]]) -> Noise | None:
    """The noise between equal runs: `baselines` in the order in which they ran, and pairs of runs
    with the same treatment. None: fewer than two runs are equal."""
    logs = [math.log(level.seconds) for level in baselines]
    steps = [(later - earlier) ** 2 for earlier, later in itertools.pairwise(logs)]
    pairs = [_half_square(*pair) for pair in treated]
    count = len(logs)
    freedom = 2 * (count - 1) ** 2 / (3 * count - 4) if count > 1 else 0.0
    if not freedom + len(pairs):
        return None
    successive = sum(steps) / 2 / (count - 1) if steps else 0.0
    between = (freedom * successive + sum(pairs)) / (freedom + len(pairs))
    levels = [*baselines, *(level for pair in treated for level in pair)]
    within = [level.error**2 for level in levels if level.error is not None]
    mean_within = sum(within) / len(within) if within else 0.0
    return Noise(max(between, mean_within), freedom + len(pairs))


def estimate_saving(blocks: Sequence[Block], noise: Noise, looks: int = 1) -> Saving:
    """The time saved, from one block or more; `looks`: how often a decision is made at most, this
    one included. A treatment whose own runs differ more than the noise widens the interval."""
    pairs = [pair for block in blocks for pair in _pairs(block)]
    differences = [math.log(treated.seconds / plain.seconds) for plain, treated in pairs]
    own = sum(_half_square(block.first, block.second) for block in blocks) / len(blocks)
    error = math.sqrt(max(noise.variance, own) * 2 / len(pairs))
    reach = student_quantile(1 - FALSE_HELPS / looks, noise.freedom) * error
    middle = sum(differences) / len(differences)
    return Saving(
        share=1 - math.exp(middle),
        low=1 - math.exp(middle + reach),
        high=1 - math.exp(middle - reach),
        pairs_agree=do_agree(differences),
    )


def do_agree(differences: Sequence[float]) -> bool:
    """Whether nearly all differ in one direction."""
    gains, count = sum(each < 0 for each in differences), len(differences)
    return min(gains, count - gains) <= count * DISSENT


def _pairs(block: Block) -> tuple[tuple[Level, Level], tuple[Level, Level]]:
    """(without, with) the treatment, neighbours in time."""
    return (block.before, block.first), (block.after, block.second)


def _half_square(first: Level, second: Level) -> float:
    """The variance by two equal runs."""
    return math.log(first.seconds / second.seconds) ** 2 / 2


def student_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t for a probability above 0.5 and at least one degree of freedom
    (Hill, "Algorithm 396: Student's t-quantiles", Communications of the ACM 13(10), 1970)."""
    tails = 2 * (1 - probability)
    freedom = max(1.0, freedom)
    if freedom < 1.5:
        return 1 / math.tan(tails * math.pi / 2)
    if freedom < 2.5:  # exact for two, and above the true value up to 2.5
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * tails) ** (2 / freedom)
    if y > a + 0.05:
        x = NormalDist().inv_cdf(tails / 2)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (
                1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
                + 0.5 / (freedom + 4)
            )
            * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)
