"""The data-parallel trainer for real: it learns, and each planted fault does what it says."""

import json
import math
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from mgpu_trainers import catalogue

from tests.support.jobs import Ended, run, started, until

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


def command(name: str = "torch-ddp", /, **options: object) -> list[str]:
    known = {"model": "cnn-nano", "device": "cpu", **options}
    return catalogue.command(catalogue.find(name), 2, known)


def train(**options: object) -> Ended:
    return run(command(**options))


def losses(ended: Ended) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", ended.out, re.MULTILINE)]


def test_the_loss_falls_and_what_was_learned_holds_for_unseen_data() -> None:
    """Of the other model: test_trainers.py."""
    ended = train(model="gpt-nano", steps=60, log_every=5)
    assert ended.code == 0
    assert sum(losses(ended)[-3:]) < 0.7 * sum(losses(ended)[:3])
    found = re.search(r"^validation loss \S+ accuracy (\S+)%$", ended.out, re.MULTILINE)
    assert found
    assert float(found[1]) > 30


def test_two_jobs_run_side_by_side() -> None:
    """One with workers and accumulation, which leaves nothing behind; in the other, gradients that
    are no numbers spread to every rank."""
    workers = {"workers": 1, "accumulate": 2}
    lost = command(steps=6, log_every=1, fault="nan:rank=1,step=3")
    with started(command(steps=8, log_every=1, **workers)) as first:
        second = subprocess.run(lost, capture_output=True, text=True, check=False, timeout=140)
        out, err = first.communicate(timeout=140)
    assert (second.returncode, first.returncode) == (0, 0)
    assert len(losses(Ended(0, out, err))) == 8
    assert "Traceback" not in err
    lost_at = [math.isnan(loss) for loss in losses(Ended(0, second.stdout, second.stderr))]
    assert lost_at == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        ("kill:step=3,signal=SEGV", {-11}),
        # Threads of gloo may abort a process that calls `sys.exit`: 3 of 8 times on a single core.
        ("exit:step=3,code=7", {7, -signal.SIGABRT}),
    ],
)
def test_a_rank_ends_as_planted(fault: str, codes: set[int]) -> None:
    ended = train(steps=6, log_every=1, fault=fault)
    assert ended.code == 1
    assert codes & {int(code) for code in re.findall(r"exitcode +: (-?\d+)", ended.err)}
    assert len(losses(ended)) == 2


def test_an_exception_reaches_standard_error() -> None:
    ended = train(steps=6, log_every=1, fault="exception:rank=0,step=3")
    assert ended.code == 1
    assert "[rank0]: RuntimeError: planted exception at step 3" in ended.err
    assert len(losses(ended)) == 2


def test_a_hanging_rank_holds_up_the_other_without_an_error() -> None:
    with started(command(steps=50, log_every=1, fault="hang:step=4")) as job:
        assert job.stdout
        printed = [next(job.stdout) for _ in range(3)]
        assert printed[-1].startswith("step 3 loss")
        ranks = psutil.Process(job.pid).children()
        sleeper = next(each for each in ranks if each.environ()["RANK"] == "1")
        before = sleeper.num_ctx_switches().voluntary
        # The culprit is awake again and again, yet no rank gets any further.
        until(lambda: sleeper.num_ctx_switches().voluntary > before + 100)
        assert len(ranks) == 2
        assert all(each.is_running() for each in ranks)
        assert job.poll() is None


def test_a_leaking_rank_grows_and_no_thread_of_gloo_outlives_training(tmp_path: Path) -> None:
    """A thread that does may abort the process at its exit (pytorch issue 190489)."""
    healthy, leaking = (at_exit(tmp_path, fault) for fault in (None, "leak:rank=0,mb=8"))
    grown = leaking["most_memory"] - healthy["most_memory"]
    assert 20 * 8 * 0.8 < grown / 2**20 < 20 * 8 * 1.2
    assert "python" in healthy["threads"]
    assert "gloo" not in healthy["threads"]


def test_no_thread_of_gloo_outlives_the_sharded_optimizer(tmp_path: Path) -> None:
    ended = at_exit(tmp_path, "nan:rank=0,step=2", "torch-zero1")
    assert "python" in ended["threads"]
    assert "gloo" not in ended["threads"]


AT_EXIT = """
import atexit, json, os, resource
def write():
    threads = [open(f'/proc/self/task/{t}/comm').read() for t in os.listdir('/proc/self/task')]
    most_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with open(PATH, 'w') as file:
        json.dump({"threads": [each.strip() for each in threads], "most_memory": most_memory}, file)
if os.environ.get('RANK') == '0':
    atexit.register(write)
"""


def at_exit(folder: Path, fault: str | None, name: str = "torch-ddp") -> dict[str, Any]:
    """Names of the threads that rank 0 still has as its Python shuts down, and the most memory it
    ever had, bytes."""
    written = folder / "written.json"
    (folder / "sitecustomize.py").write_text(AT_EXIT.replace("PATH", repr(str(written))))
    assert run(["env", f"PYTHONPATH={folder}", *command(name, steps=20, fault=fault)]).code == 0
    found: dict[str, Any] = json.loads(written.read_text())
    return found


def test_slowness_changes_nothing_but_time() -> None:
    slow = "slow:phase=backward,ms=2,burn=1;slow:phase=optimizer,ms=2;slow:phase=other,ms=2"
    rest = "slow:phase=forward,factor=2;slow:phase=input,ms=2;slow-loader:ms=1;uneven:factor=3"
    ended = train(steps=10, fault=f"{slow};{rest}")
    assert ended.code == 0
    assert losses(ended)[-1] < losses(ended)[0]


def test_a_fault_that_makes_no_sense_ends_with_one_sentence() -> None:
    given = {"steps": 2, "fault": "kill:rank=0"}
    right = catalogue.command(catalogue.find("torch-single"), None, given)
    ended = run([*right[:-1], "kil"])
    assert ended.code == 2
    assert "position 1: there is no fault 'kil'" in ended.err
    assert len(ended.err.splitlines()) == 1
