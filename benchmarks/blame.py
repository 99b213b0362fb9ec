"""Who is to blame: faults planted in real jobs, and whether the doctor names rank and cause.

    python -m benchmarks.blame [--part matrix ...] [--only TEXT] [--ranks 2 4] [--steps 150]
                               [--sizes 10% 30%] [--keep FOLDER]

Parts: `matrix` (every place × script × size), `causes` (what surrounds a slow rank, settings,
data), `time-outs` (hangs that the collective's time-out ends), `outside` (hangs examined while they
last), `between` (work of one rank between steps, barriers, uneven work, diverged replicas, a
signal), `healthy`. A fault counts as right if the first finding with a culprit (or the first at
all, if no rank is at fault) has the right code and ranks; an abstention is a miss. On a healthy job
any finding at warning or worse is a false alarm. Where the fault costs 15 % or more, what the
finding promises is compared with the healthy twin's step. Nothing else should run meanwhile:
`matrix` takes about an hour on two cores, the others together as long. `--keep` keeps the
recordings; those that are there already are diagnosed anew, and their jobs are not run.
"""

from __future__ import annotations

import argparse
import enum
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import machine
from benchmarks.trial_runs import Diagnosis, TrialError, examined
from benchmarks.trials import SIZES, Trial, causes, matrix
from benchmarks.trials_between import between
from benchmarks.trials_hangs import outside, time_outs
from benchmarks.trials_healthy import healthy

WORTH_PREDICTING = 0.15
PARTS = ("matrix", "causes", "time-outs", "outside", "between", "healthy")
QUIET = ("info",)


class Score(enum.Enum):
    """What a trial comes to."""

    RIGHT = "ok"
    ABSTAINED = "MISS"
    WRONG_CAUSE = "CAUSE"
    """The right ranks, by another name."""
    WRONG = "WRONG"
    """A healthy rank is blamed, or a healthy job gets an alarm."""


def judge(trial: Trial, findings: Sequence[dict[str, Any]]) -> Score:
    """The score of the first finding that accuses somebody; of the first at all, if no rank is at
    fault."""
    if trial.healthy:
        silent = all(finding["severity"] in QUIET for finding in findings)
        return Score.RIGHT if silent else Score.WRONG
    accusing = [finding for finding in findings if finding["culprits"] or not trial.culprits]
    if not accusing:
        return Score.ABSTAINED
    first = accusing[0]
    ranks = sorted(culprit["rank"] for culprit in first["culprits"])
    if ranks == sorted(trial.culprits):
        return Score.RIGHT if first["code"] in trial.codes else Score.WRONG_CAUSE
    return Score.WRONG


def step_seconds(diagnosis: Diagnosis) -> float | None:
    """Median over ranks of the median step."""
    medians = [rank["step_seconds_median"] for rank in diagnosis["ranks"]]
    medians = [seconds for seconds in medians if seconds is not None]
    return statistics.median(medians) if medians else None


def promise(diagnosis: Diagnosis, well: float | None) -> float | None:
    """Promised gain over the gain that the healthy twin shows, less 1; None: not comparable."""
    slow = step_seconds(diagnosis)
    if not diagnosis["findings"] or slow is None or well is None or slow <= well:
        return None
    first = diagnosis["findings"][0]
    predicted = first["fixes"][0]["predicted"] if first["fixes"] else None
    ratio = predicted["step_time_ratio"] if predicted else None
    if ratio is None or (slow - well) / slow < WORTH_PREDICTING:
        return None
    return float((1 - ratio) * slow / (slow - well) - 1)


def trials(
    parts: Sequence[str], ranks: Sequence[int], steps: int, sizes: Sequence[str]
) -> Iterator[tuple[str, Trial]]:
    """The trials, each with the name of its part; healthy ones, the twins of faults, come first."""
    chosen = {
        "healthy": lambda: healthy(steps),
        "matrix": lambda: (job for count in ranks for job in matrix(count, steps, sizes)),
        "causes": causes,
        "time-outs": time_outs,
        "outside": outside,
        "between": between,
    }
    for part, of_part in chosen.items():
        if part in parts:
            yield from ((part, trial) for trial in of_part())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="of `matrix`")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--only", default="", help="only trials whose name holds this text")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--keep", type=Path, help="keep recordings here, and use those kept before")
    args = parser.parse_args()
    print(machine())
    scores: dict[str, Counter[Score]] = {}
    wells: dict[tuple[str, int], float | None] = {}
    errors: list[float] = []
    for part, trial in trials(args.part, args.ranks, args.steps, args.sizes):
        if args.only not in trial.name:
            continue
        try:
            diagnosis = examined(trial, args.keep)
        except TrialError as error_of_trial:
            print(f"not judged: {error_of_trial}", flush=True)
            continue
        score = judge(trial, diagnosis["findings"])
        scores.setdefault("healthy" if trial.healthy else part, Counter())[score] += 1
        error = None
        if trial.healthy:
            wells[trial.twin] = step_seconds(diagnosis)
        elif score is Score.RIGHT:
            error = promise(diagnosis, wells.get(trial.twin))
        if error is not None:
            errors.append(error)
        print(line(trial, diagnosis["findings"], score, error), flush=True)
    for part, counted in scores.items():
        print(total(part, counted))
    if errors:
        close = sum(abs(error) <= 0.2 for error in errors)
        print(
            f"promised against measured gain: median {statistics.median(errors):+.0%}, "
            f"within ±20 % in {close}/{len(errors)}"
        )


def total(part: str, counted: Counter[Score]) -> str:
    """The score of one part, in a line."""
    jobs = counted.total()
    if part == "healthy":
        return f"healthy: {jobs} jobs, {counted[Score.WRONG]} with alarms"
    return (
        f"{part}: {jobs} jobs, right {counted[Score.RIGHT]}, right rank with another cause "
        f"{counted[Score.WRONG_CAUSE]}, abstained {counted[Score.ABSTAINED]}, wrong "
        f"{counted[Score.WRONG]}"
    )


def line(
    trial: Trial, findings: Sequence[dict[str, Any]], score: Score, error: float | None
) -> str:
    """One trial: its score, and what was found."""
    listed = "; ".join(
        f"{finding['code']} {[culprit['rank'] for culprit in finding['culprits']] or ''} "
        f"{finding['severity']}"
        for finding in findings
    )
    promised = "" if error is None else f"  gain {error:+.0%}"
    return f"{score.value:5} {trial.ranks} {trial.name:34} {listed or 'nothing'}{promised}"


if __name__ == "__main__":
    main()
