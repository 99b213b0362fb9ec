"""Who is to blame: faults planted in real jobs, and whether the doctor names rank and cause.

    python -m benchmarks.blame [--ranks 2 4] [--steps 150] [--sizes 10% 30%] [--only TEXT]
                               [--part matrix]

Parts: `matrix` (every place × script × size), `causes` (what surrounds a slow rank, settings,
data), `healthy`. A fault counts as found if the first finding with a culprit (or the first at all,
if no rank is at fault) has the right code and ranks; an abstention is a miss. On a healthy job
any finding at warning or worse is a false alarm. Where the fault costs 15 % or more, what the
finding promises is compared with the healthy twin's step. Nothing else should run meanwhile: the
whole takes about an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import DOCTOR, JOBS, STEADY, TORCHRUN, machine
from benchmarks.trials import SIZES, Trial, causes, healthy, matrix

WORTH_PREDICTING = 0.15
PARTS = ("matrix", "causes", "healthy")
QUIET = ("info",)


def examined(trial: Trial) -> dict[str, Any]:
    """Runs one job under the doctor and returns the diagnosis."""
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        out = Path(folder) / "diagnosis.json"
        script = str(JOBS / f"{trial.script}.py")
        start = (
            [*TORCHRUN, str(trial.ranks), script] if trial.torchrun else [sys.executable, script]
        )
        settings = [f"{name}={value}" for name, value in (*STEADY, *trial.environment)]
        observed = [*DOCTOR, "run", "--dir", f"{folder}/run", "--json-out", str(out), "--"]
        done = subprocess.run(
            ["env", *settings, *observed, *start, *trial.options],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not out.exists():
            raise SystemExit(f"{trial.name}: exit code {done.returncode}\n{done.stderr}")
        diagnosis: dict[str, Any] = json.loads(out.read_text())
        return diagnosis


def verdict(trial: Trial, found: Sequence[dict[str, Any]]) -> tuple[bool, bool]:
    """(right rank, right cause); for a healthy job, whether it stayed silent, twice."""
    if trial.healthy:
        silent = all(one["severity"] in QUIET for one in found)
        return silent, silent
    accusing = [one for one in found if one["culprits"]] if trial.culprits else list(found)
    if not accusing:
        return False, False
    first = accusing[0]
    rank = sorted(who["rank"] for who in first["culprits"]) == sorted(trial.culprits)
    return rank, rank and first["code"] in trial.codes


def step_seconds(diagnosis: dict[str, Any]) -> float | None:
    """Median over ranks of the median step."""
    known = [rank["step_seconds_median"] for rank in diagnosis["ranks"]]
    known = [seconds for seconds in known if seconds is not None]
    return statistics.median(known) if known else None


def promise(diagnosis: dict[str, Any], well: float | None) -> float | None:
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
) -> Iterator[Trial]:
    if "matrix" in parts:
        for many in ranks:
            yield from matrix(many, steps, sizes)
    if "causes" in parts:
        yield from causes()
    if "healthy" in parts:
        yield from healthy(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--only", default="", help="only trials whose name holds this text")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    print(machine())
    score: Counter[str] = Counter()
    wells: dict[tuple[str, int], float | None] = {}
    errors: list[float] = []
    for trial in trials(args.part, args.ranks, args.steps, args.sizes):
        if args.only not in trial.name:
            continue
        diagnosis = examined(trial)
        found = diagnosis["findings"]
        rank, cause = verdict(trial, found)
        error = None
        if trial.healthy:
            score.update(healthy=1, silent=rank)
            wells[trial.twin] = step_seconds(diagnosis)
        else:
            score.update(faults=1, ranks=rank, causes=cause)
            error = promise(diagnosis, wells.get(trial.twin)) if cause else None
        if error is not None:
            errors.append(error)
        print(line(trial, found, cause, error), flush=True)
    print(
        f"right rank {score['ranks']}/{score['faults']}, right rank and cause "
        f"{score['causes']}/{score['faults']}, silent on healthy jobs "
        f"{score['silent']}/{score['healthy']}"
    )
    if errors:
        close = sum(abs(error) <= 0.2 for error in errors)
        print(
            f"promised against measured gain: median {statistics.median(errors):+.0%}, "
            f"within ±20 % in {close}/{len(errors)}"
        )


def line(trial: Trial, found: Sequence[dict[str, Any]], right: bool, error: float | None) -> str:
    said = "; ".join(
        f"{one['code']} {[who['rank'] for who in one['culprits']] or ''} {one['severity']}"
        for one in found
    )
    promised = "" if error is None else f"  gain {error:+.0%}"
    mark = "ok  " if right else "MISS"
    return f"{mark} {trial.ranks} {trial.name:34} {said or 'nothing'}{promised}"


if __name__ == "__main__":
    main()
