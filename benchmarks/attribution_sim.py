"""Detection delay and false alarms of the straggler test, on simulated fleets.

    python benchmarks/attribution_sim.py [--runs 20] [--ranks 4 64 512]

Delay: steps after a slowdown begins until its rank, and no other, is named, when the doctor looks
every 5 steps. False alarms: ranks named in healthy jobs that are looked at every 50 steps, per
million rank-steps. Noise: log-normal, 1 % heavy-tailed spikes, 0.5 % constant rank differences.
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import BACKWARD, COMMUNICATION, PHASES, WAIT

from mgpu_doctor.analysis.align import Joined
from mgpu_doctor.analysis.attribution import attribute
from mgpu_doctor.analysis.stragglers import find_stragglers

STEP = 0.1
MOVING = 0.005
BEFORE = 50
LONGEST = 150
HEALTHY_STEPS = 400


@dataclass(frozen=True, slots=True)
class Fleet:
    ranks: int
    noise: float


def simulate(
    fleet: Fleet, steps: int, seed: int, *, slowdown: float = 0.0, start: int = 0
) -> tuple[Joined, int]:
    """Joined steps whose rank `culprit` is slower from `start` on, and that culprit."""
    random = np.random.default_rng(seed)
    shape = (steps, fleet.ranks)
    own = STEP * np.exp(fleet.noise * random.standard_normal(shape))
    own *= 1 + 0.005 * random.standard_normal(fleet.ranks)
    spiking = random.random(shape) < 0.01
    own = np.where(spiking, own * (1 + 0.5 * random.random(shape)), own)
    culprit = int(random.integers(fleet.ranks))
    own[start:, culprit] *= 1 + slowdown
    standing = own.max(axis=1, keepdims=True) - own + MOVING
    phases = np.zeros((*shape, len(PHASES)))
    phases[:, :, BACKWARD] = own
    phases[:, :, WAIT] = standing
    phases[:, :, COMMUNICATION] = np.nan
    return joined(own + standing, phases), culprit


def joined(wall: npt.NDArray[np.float64], phases: npt.NDArray[np.float64]) -> Joined:
    return Joined(
        ranks=tuple(range(wall.shape[1])),
        steps=np.arange(len(wall)),
        wall=wall,
        phases=phases,
        end=np.cumsum(wall, axis=0),
        flags=np.zeros(wall.shape, dtype=np.int64),
        joined_by="simulation",
        left_out=(),
        counted_from=0,
    )


def named(whole: Joined, steps: int) -> set[int]:
    """The ranks named after so many steps."""
    seen = joined(whole.wall[:steps], whole.phases[:steps])
    return {one.rank for one in find_stragglers(seen, attribute(seen))}


def delay(fleet: Fleet, slowdown: float, start: int, seed: int) -> int | None:
    """Steps from the onset until exactly the culprit is named; None: not within `LONGEST`."""
    whole, culprit = simulate(fleet, start + LONGEST, seed, slowdown=slowdown, start=start)
    for after in range(5, LONGEST + 1, 5):
        if named(whole, start + after) == {culprit}:
            return after
    return None


def false_alarms(fleet: Fleet, seed: int) -> int:
    """Ranks named in a healthy job, over all looks."""
    whole, _ = simulate(fleet, HEALTHY_STEPS, seed)
    return sum(len(named(whole, steps)) for steps in range(50, HEALTHY_STEPS + 1, 50))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 64, 512])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.03])
    arguments = parser.parse_args()
    print(
        f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{arguments.runs} runs a line"
    )
    print(" ranks  noise  slower  onset   found  median   p90")
    for ranks in arguments.ranks:
        for noise in arguments.noise:
            fleet = Fleet(ranks, noise)
            for slowdown in (0.03, 0.05, 0.10):
                for start in (0, BEFORE):
                    report_delays(fleet, slowdown, start, arguments.runs)
            report_alarms(fleet, arguments.runs)


def report_delays(fleet: Fleet, slowdown: float, start: int, runs: int) -> None:
    found = [delay(fleet, slowdown, start, seed) for seed in range(runs)]
    known = [LONGEST * 10 if one is None else one for one in found]
    middle, most = np.median(known), np.quantile(known, 0.9)
    hits = sum(one is not None for one in found)
    print(
        f"{fleet.ranks:>6} {fleet.noise:>6.0%} {slowdown:>7.0%} {start:>6} {hits:>4}/{runs} "
        f"{_steps(middle):>7} {_steps(most):>5}"
    )


def report_alarms(fleet: Fleet, runs: int) -> None:
    began = time.perf_counter()
    alarms = sum(false_alarms(fleet, 10**6 + seed) for seed in range(runs))
    looks = runs * (HEALTHY_STEPS // 50)
    taken = (time.perf_counter() - began) / looks
    rank_steps = runs * HEALTHY_STEPS * fleet.ranks
    print(
        f"{fleet.ranks:>6} {fleet.noise:>6.0%} {'healthy':>7} {alarms} false alarms in "
        f"{rank_steps:,} rank-steps ({alarms / rank_steps * 1e6:.2f} per million), "
        f"{taken * 1e3:.0f} ms a look"
    )


def _steps(value: float) -> str:
    return "never" if value > LONGEST else f"{value:.0f}"


if __name__ == "__main__":
    main()
