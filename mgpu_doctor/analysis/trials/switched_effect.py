"""How much time a treatment saves that is switched on and off within a run, and how sure that is.
Pure.

The blocks of steps follow the Thue-Morse sequence, A B B A B A A B … (`trial_blocks` of the probe),
and in a second run its inverse, B A A B …. Two blocks in a row give one number: the logarithm of
the mean step time with the treatment over that without. What a run has of its own, such as memory
layout and placement, cancels in it. So do, in the mean of both runs, costs of certain steps, such
as checkpoints, evaluations and long batches: each step was made once with and once without the
treatment. One run alone decides nothing, because a job's checkpoints may keep in step with the
blocks.

Successive numbers may be correlated. They are batch means of one long run (Schmeiser, "Batch Size
Effects in the Analysis of Simulation Output", Operations Research 30(3), 1982): the variance of
their mean is widened by (1 + r) / (1 - r), and the degrees of freedom of Student's t are reduced as
much, where r is the lag-one autocorrelation (Law and Kelton, "Simulation Modeling and Analysis",
2nd edition, 1991, section 4.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mgpu_probes.inprocess.treatments.trial_blocks import is_treated_block

from mgpu_doctor.analysis.statistics.significance import autocorrelation
from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.analysis.trials.paired_effect import (
    FALSE_HELPS,
    Saving,
    do_agree,
    student_quantile,
)

BLOCKS = 24
"""Blocks of a run: twelve numbers. A choice."""
LEAST_PAIRS = 4
LEAST_RUNS = 2
SETTLING = 2
"""Steps of each block that are left out: a batch that was fetched before, or work that the switch
itself causes."""


@dataclass(frozen=True, slots=True)
class SwitchedBlocks:
    """The blocks of a run: their length in steps, and whether on and off are exchanged."""

    length: int
    inverted: bool = False

    def treated_steps(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """For each of so many steps from the first block on, whether the treatment was on."""
        blocks = range(-(-count // self.length))
        on = [is_treated_block(block) is not self.inverted for block in blocks]
        return np.repeat(np.array(on, dtype=bool), self.length)[:count]


def estimate_switched(runs: Sequence[Floats], length: int, looks: int = 1) -> Saving | None:
    """The time saved, from the step times of runs that begin with a whole block, every second one
    inverted. None: too few blocks. Of one run, the result is neither gain nor loss; the last of
    three is left out. `looks`: how often a decision is made at most, this one included."""
    whole = runs if len(runs) < LEAST_RUNS else runs[: len(runs) // 2 * 2]
    each_run = [_ratios(run, length, inverted=bool(at % 2)) for at, run in enumerate(whole)]
    count = min(map(len, each_run), default=0)
    if count < LEAST_PAIRS:
        return None
    ratios = np.mean([each[:count] for each in each_run], axis=0)
    middle = float(ratios.mean())
    alike = autocorrelation(ratios - middle)
    wider = (1 + alike) / (1 - alike)
    error = math.sqrt(float(ratios.var(ddof=1)) * wider / count)
    reach = student_quantile(1 - FALSE_HELPS / looks, max(1.0, count / wider - 1)) * error
    return Saving(
        share=1 - math.exp(middle),
        low=1 - math.exp(middle + reach),
        high=1 - math.exp(middle - reach),
        pairs_agree=len(runs) >= LEAST_RUNS and do_agree(ratios.tolist()),
    )


def join_losses(
    plain: Sequence[Floats], treated: Sequence[Floats], length: int
) -> tuple[list[Floats], list[Floats]]:
    """The losses to compare: of the steps with the treatment, and of the same steps in runs without
    it. `treated`: of a run, or of this and an inverted one."""
    count = min(map(len, (*plain, *treated)), default=0)
    on = SwitchedBlocks(length).treated_steps(count)
    if len(treated) > 1:
        joined = np.where(on, treated[0][:count], treated[1][:count])
        return list(plain), [joined]
    return [each[:count][on] for each in plain], [each[:count][on] for each in treated]


def _ratios(seconds: Floats, length: int, *, inverted: bool) -> Floats:
    """The logarithm of the ratio of each two blocks. Their number is a multiple of four: with and
    without the treatment are then equally often in each place, and in each order."""
    pairs = len(seconds) // (8 * length) * 4
    blocks = seconds[: 2 * pairs * length].reshape(2 * pairs, length)[:, SETTLING:].mean(axis=1)
    logs = np.log(blocks).reshape(pairs, 2)
    treated = SwitchedBlocks(1, inverted).treated_steps(2 * pairs).reshape(pairs, 2)
    signed: Floats = np.where(treated, logs, -logs)
    return signed[:, 0] + signed[:, 1]
