"""Side by side with TraceML 0.5 (Apache-2.0): the same faults, its verdict and ours, both costs.

    python -m benchmarks.peers.traceml [--steps 120] [--only TEXT]

TraceML is installed into a temporary virtual environment, which sees this one's torch. A plain loop
must call it (`traced_ddp.py`); the doctor watches `tests/jobs/plain_ddp.py`, which has the same
model, data and faults and knows nothing of it. Each fault also runs bare, for the costs. Two ranks,
rank 1 is the culprit. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import site
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support import DOCTOR, JOBS, TORCHRUN, Run, machine, timed

PEER = "traceml-ai==0.5.0"
CULPRIT = 1
PLACES = ("input", "forward", "backward", "optimizer", "between")
SIZES = (("--ms", "20"), ("--percent", "30"), ("--percent", "100"))
TRACED = Path(__file__).parent / "traced_ddp.py"
SHOWN = 100


@dataclass(frozen=True)
class Verdict:
    """What a tool said: the ranks it named, and its words."""

    ranks: frozenset[int]
    words: str
    run: Run


def install(folder: Path) -> Path:
    """A virtual environment with the peer in it; its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "parent.pth").write_text("\n".join(site.getsitepackages()))
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", PEER]
    subprocess.run(pip, check=True)
    return folder / "bin"


def verdict_of_doctor(folder: Path, options: list[str]) -> Verdict:
    out = folder / "diagnosis.json"
    out.unlink(missing_ok=True)
    script = [*TORCHRUN, "2", str(JOBS / "plain_ddp.py"), *options]
    with tempfile.TemporaryDirectory(dir=folder) as recording:
        observed = [*DOCTOR, "run", "--dir", recording, "--json-out", str(out), "--"]
        run = timed([*observed, *script])
    findings = json.loads(out.read_text())["findings"]
    loud = [finding for finding in findings if finding["severity"] != "info"]
    if not loud:
        return Verdict(frozenset(), "nothing wrong", run)
    named = frozenset(culprit["rank"] for culprit in loud[0]["culprits"])
    return Verdict(named, f"{loud[0]['code']}: {loud[0]['title']}", run)


def verdict_of_traceml(programs: Path, folder: Path, options: list[str]) -> Verdict:
    with tempfile.TemporaryDirectory(dir=folder) as logs:
        start = [str(programs / "traceml"), "run", "--mode", "summary", "--logs-dir", logs]
        script = ["--nproc-per-node", "2", str(TRACED), "--args", *options]
        run = timed([*start, *script])
        (summary,) = Path(logs).glob("*/final_summary.txt")
        text = summary.read_text()
    sentences = re.findall(r"(?:Verdict|Why): +(.*?) *\|?$", text, re.MULTILINE)
    verdict_text = " ".join(sentences)
    # The first rank of the sentence is the one it accuses; it names another one to compare with.
    named = re.search(r"\bR(\d+)\b", verdict_text) if "STRAGGLER" in verdict_text else None
    return Verdict(frozenset({int(named[1])} if named else ()), verdict_text, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--only", default="", help="only faults whose name holds this text")
    args = parser.parse_args()
    print(machine())
    os.environ["PYTHONPATH"] = str(JOBS)  # for the traced script; the doctor's job needs none
    faults: list[tuple[str, list[str]]] = [("healthy", [])]
    for place in PLACES:
        for option, amount in SIZES:
            unit = " ms" if option == "--ms" else " %"
            planted = ["--fault", place, "--rank", str(CULPRIT), option, amount]
            faults.append((f"{place} {amount}{unit}", planted))
    right = {"doctor": 0, "TraceML": 0}
    cost: dict[str, list[Run]] = {"bare": [], "doctor": [], "TraceML": []}
    trial_count = 0
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-peer-") as place_:
        folder = Path(place_)
        programs = install(folder / "venv")
        for name, planted in faults:
            if args.only not in name:
                continue
            options = ["--steps", str(args.steps), *planted]
            cost["bare"].append(timed([*TORCHRUN, "2", str(JOBS / "plain_ddp.py"), *options]))
            verdicts = {
                "doctor": verdict_of_doctor(folder, options),
                "TraceML": verdict_of_traceml(programs, folder, options),
            }
            truth = frozenset({CULPRIT}) if planted else frozenset()
            trial_count += 1
            for tool, verdict in verdicts.items():
                right[tool] += verdict.ranks == truth
                cost[tool].append(verdict.run)
                mark = "ok  " if verdict.ranks == truth else "MISS"
                print(f"{mark} {name:16} {tool:8} {verdict.words[:SHOWN]}", flush=True)
    for tool, right_count in right.items():
        print(f"{tool}: right rank (or silence) in {right_count}/{trial_count}")
    for tool, runs in cost.items():
        cpu, wall = (sum(run.cpu for run in runs), sum(run.wall for run in runs))
        print(f"{tool:8} {wall / len(runs):6.1f} s and {cpu / len(runs):6.1f} CPU-s a run")


if __name__ == "__main__":
    main()
