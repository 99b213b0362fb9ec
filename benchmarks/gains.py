"""Whether fixing a straggler gains what the doctor predicts.

    python -m benchmarks.gains [--ms 20 40] [--only TEXT]

Each job is healthy for its first half and has a slow rank in the second; the doctor sees the whole.
What its fix promises is compared with what the same job, in the same run, took before the fault:
two runs of one script differ by more on a small machine than many faults cost. Nothing else should
run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.support import DOCTOR, JOBS, STEADY, TORCHRUN, machine
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding

STEPS = 200
ONSET = STEPS // 2
WARM = 10
"""Steps at the beginning, and around the onset, that count for neither side."""
CLOSE = 0.2
PLACES = {
    "plain_ddp": ("input", "forward", "backward", "optimizer", "between"),
    "no_loader": ("forward", "backward", "optimizer"),
    "manual_allreduce": ("forward", "backward"),
    "accumulate": ("forward", "input"),
    "fsdp2": ("forward", "optimizer"),
    "lightning_like": ("input", "between"),
}


def recorded(script: str, place: str, milliseconds: int) -> Case:
    """The job, run under the doctor."""
    options = ["--steps", str(STEPS), "--after", str(ONSET), "--ms", str(milliseconds)]
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        observed = [*DOCTOR, "run", "-q", "--dir", f"{folder}/run", "--", *TORCHRUN, "2"]
        job = [str(JOBS / f"{script}.py"), *options, "--fault", place, "--rank", "1"]
        settings = [f"{name}={value}" for name, value in STEADY]
        subprocess.run(["env", *settings, *observed, *job], capture_output=True, check=True)
        return load_recording(Path(folder) / "run")


def promised_gain(finding: Finding | None) -> float | None:
    """Share of the step time that the first fix saves."""
    if finding is None or not finding.fixes or finding.fixes[0].predicted is None:
        return None
    ratio = finding.fixes[0].predicted.step_time_ratio
    return None if ratio is None else 1 - ratio


def measured_gain(case: Case) -> float:
    """The same between the halves of the run, from mean steps."""
    walls = [rank.steps["wall_ns"].astype(float) for rank in case.ranks]
    onset = len(walls[0]) // 2
    fast_step = np.mean([np.mean(wall[WARM : onset - WARM]) for wall in walls])
    slow_step = np.mean([np.mean(wall[onset + WARM :]) for wall in walls])
    return float(1 - fast_step / slow_step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ms", type=int, nargs="+", default=[20, 40])
    parser.add_argument("--only", default="", help="only jobs whose name holds this text")
    args = parser.parse_args()
    print(machine())
    errors, jobs = [], 0
    for script, places in PLACES.items():
        for place in places:
            for milliseconds in args.ms:
                name = f"{script} {place} {milliseconds} ms"
                if args.only not in name:
                    continue
                jobs += 1
                case = recorded(script, place, milliseconds)
                accusing = next(
                    (finding for finding in diagnose(case).findings if finding.culprits), None
                )
                promise, was = promised_gain(accusing), measured_gain(case)
                if promise is None:
                    print(f"{name:34} nothing promised; measured {was:.0%}", flush=True)
                    continue
                errors.append(promise / was - 1)
                print(
                    f"{name:34} promised {promise:.1%} measured {was:.1%} ({errors[-1]:+.0%})",
                    flush=True,
                )
    close = sum(abs(error) <= CLOSE for error in errors)
    if errors:
        print(
            f"median {statistics.median(errors):+.0%}, within ±20 % in {close} of {jobs} jobs",
        )


if __name__ == "__main__":
    main()
