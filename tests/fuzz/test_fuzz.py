"""The fuzzer finds nothing wrong with the doctor, and finds what is wrong when something is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import corpus

ROOT = Path(__file__).parents[2]
SEED = 1
COUNT = 10
"""Of each format, always the same ones: an input takes half a second of processor time. New ones:
`python -m tests.fuzz --seed N`."""


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    """In one process, which measures the baselines: `make test-slow` has something for the other
    cores."""
    command = [sys.executable, "-m", "tests.fuzz", "--jobs", "1", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("format", corpus.FORMATS)
def test_many_inputs_of_a_format(format: str, tmp_path: Path) -> None:
    done = fuzz(
        *("--format", format, "--count", str(COUNT), "--seed", str(SEED)),
        *("--views", "1", "--keep", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{format}: {COUNT} inputs" in done.stdout


VIEWS_OF_EACH = {"recordings": 5, "dumps": 2, "logs": 1}
"""Where the honest inputs are many, or the views: enough that every view has one of them."""


@pytest.mark.slow
@pytest.mark.parametrize("format", corpus.FORMATS)
def test_honest_inputs_pass_in_their_views(format: str) -> None:
    """In every view; of some formats, in some views each."""
    views = str(VIEWS_OF_EACH.get(format, "all"))
    done = fuzz("--honest", "--format", format, "--views", views)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{format}: {len(corpus.seeds(format))} inputs" in done.stdout


WRONG = {
    "exception": "raise ValueError('wrong')",
    "in a thread": "threading.Thread(target=lambda: 1 / 0).start(); time.sleep(0.2)",
    "exit code": "sys.exit(2)",
    "signal": "os.abort()",
    "control": "print('\\x1b[2J')",
    "invisible": "print('\\u202eolleh')",
    "encoding": "sys.stdout.buffer.write(b'\\xff')",
    "stderr": "warnings.warn('overflow')",
    "memory": "bytearray(400 << 20)",
    "time": "while time.process_time() < 2: pass",
    "read outside": "open(outside / 'secret.txt').read()",
    "listed outside": "os.listdir(outside)",
    "shown": "print((outside / 'secret.txt').read_text())",
    "deed": "os.system('true')",
    "written": "(outside.parent / 'new').write_text('x')",
}
"""What a command line must not do, with a word that tells the fault."""
KINDS = {
    "in a thread": "exception",
    "read outside": "outside",
    "listed outside": "outside",
    "shown": "outside",
    "written": "deed",
}
SCRIPT = """
import os, sys, threading, time, warnings
from pathlib import Path
import mgpu_doctor.cli
from tests.fuzz import promise_checks
from tests.fuzz.campaign import Campaign

promise_checks.CPU_SECONDS = 1.0  # of 10, which would be waited for

def main():
    outside = Path(os.environ["MGPU_DOCTOR_HOME"]).parents[1] / "outside"
    if "masters" not in sys.argv[2]:
        exec(WRONG)

mgpu_doctor.cli.main = main
campaign = Campaign("snapshots", 1, Path(sys.argv[1]), "text")
for name, WRONG in eval(sys.argv[2]).items():
    print(name, [one.fault for one in campaign.examine(0)], sep="=")
campaign.close()
"""


@pytest.mark.slow
def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "fuzz"), repr(WRONG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert told.keys() == WRONG.keys()
    missed = [name for name, faults in told.items() if f"{KINDS.get(name, name)}: " not in faults]
    assert not missed, done.stdout
