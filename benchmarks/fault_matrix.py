"""Who is to blame: faults planted in real jobs, and whether the doctor names rank and cause.

    python -m benchmarks.fault_matrix [--ranks 4] [--steps 120] [--repeat 1] [--only TEXT]

Every job is a script of `tests/jobs`, which knows nothing of the doctor, started under torchrun by
`mgpu-doctor run`. An abstention counts as a miss; on a healthy job any finding at warning or worse
is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support import DOCTOR, JOBS, TORCHRUN, machine

CODES = {
    "input": "straggler-input",
    "forward": "straggler-compute",
    "backward": "straggler-compute",
    "optimizer": "straggler-optimizer",
    "between": "straggler-other",
}
SIZES = (("--ms", "20"), ("--percent", "30"))


@dataclass(frozen=True)
class Trial:
    script: str
    fault: str | None
    size: tuple[str, str] = ("--ms", "0")

    @property
    def name(self) -> str:
        if self.fault is None:
            return f"{self.script} healthy"
        amount = f"{self.size[1]} ms" if self.size[0] == "--ms" else f"+{self.size[1]} %"
        return f"{self.script} {self.fault} {amount}"


def trials() -> Iterator[Trial]:
    for script in ("plain_ddp", "no_loader", "manual_allreduce", "accumulate"):
        yield Trial(script, None)
        for fault in CODES:
            if (script in ("no_loader", "manual_allreduce") and fault == "input") or (
                script == "manual_allreduce" and fault == "optimizer"
            ):
                continue  # no loader, no optimizer: nothing of the name to be slow
            for size in SIZES:
                yield Trial(script, fault, size)


def findings(trial: Trial, ranks: int, steps: int, culprit: int) -> list[dict[str, Any]]:
    """Runs one job under the doctor and returns its findings."""
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        out = Path(folder) / "diagnosis.json"
        job = [*TORCHRUN, str(ranks), str(JOBS / f"{trial.script}.py"), "--steps", str(steps)]
        if trial.fault is not None:
            job += ["--fault", trial.fault, "--rank", str(culprit), *trial.size]
        observed = [*DOCTOR, "run", "--dir", f"{folder}/run", "--json-out", str(out), "--", *job]
        done = subprocess.run(observed, capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            raise SystemExit(f"{trial.name}: exit code {done.returncode}\n{done.stderr}")
        found: list[dict[str, Any]] = json.loads(out.read_text())["findings"]
        return found


def verdict(trial: Trial, found: list[dict[str, Any]], culprit: int) -> tuple[bool, bool]:
    """(right rank, right cause); for a healthy job, whether it stayed silent, twice."""
    loud = [one for one in found if one["severity"] in ("warning", "critical")]
    if trial.fault is None:
        return not loud, not loud
    named = [one for one in found if one["code"].startswith(("straggler", "imbalance"))]
    if not named:
        return False, False
    first = named[0]
    rank = [who["rank"] for who in first["culprits"]] == [culprit]
    return rank, rank and first["code"] == CODES[trial.fault]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", default="", help="only trials whose name holds this text")
    args = parser.parse_args()
    print(machine())
    culprit = args.ranks - 2 if args.ranks > 2 else 1
    ranks = causes = faults = quiet = healthy = 0
    for trial in trials():
        if args.only not in trial.name:
            continue
        for _ in range(args.repeat):
            found = findings(trial, args.ranks, args.steps, culprit)
            rank, cause = verdict(trial, found, culprit)
            if trial.fault is None:
                healthy += 1
                quiet += rank
            else:
                faults += 1
                ranks += rank
                causes += cause
            said = "; ".join(
                f"{one['code']} {[who['rank'] for who in one['culprits']]} {one['severity']}"
                for one in found
            )
            mark = "ok  " if cause else "MISS"
            print(f"{mark} {trial.name:36} {said or 'nothing'}", flush=True)
    print(f"right rank {ranks}/{faults}, right cause {causes}/{faults}, ", end="")
    print(f"silent on healthy jobs {quiet}/{healthy}")


if __name__ == "__main__":
    main()
