"""The data-parallel trainer for real: it learns, and each planted fault does what it says."""

import math
import re
import signal
import subprocess
from pathlib import Path

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


def first_failure(ended: Ended) -> tuple[int, int]:
    """Rank and exit code of the one that torchrun saw fail first."""
    found = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", ended.err, re.DOTALL)
    assert found, ended.err
    return int(found[1]), int(found[2])


@pytest.mark.parametrize(("model", "accuracy"), [("cnn-nano", 80), ("gpt-nano", 30)])
def test_the_loss_falls_and_what_was_learned_holds_for_unseen_data(
    model: str, accuracy: float
) -> None:
    ended = train(model=model, steps=60, log_every=5)
    assert ended.code == 0
    assert sum(losses(ended)[-3:]) < 0.7 * sum(losses(ended)[:3])
    found = re.search(r"^validation loss \S+ accuracy (\S+)%$", ended.out, re.MULTILINE)
    assert found
    assert float(found[1]) > accuracy


def test_workers_and_accumulation_leave_nothing_behind() -> None:
    ended = train(steps=8, workers=1, accumulate=2, log_every=1)
    assert ended.code == 0
    assert len(losses(ended)) == 8
    assert "Traceback" not in ended.err


def test_two_jobs_run_side_by_side() -> None:
    with started(command(steps=5)) as first:
        second = subprocess.run(command(steps=5), capture_output=True, check=False, timeout=140)
        assert (second.returncode, first.wait(timeout=140)) == (0, 0)


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        ("kill:step=3", {-9}),
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


def test_no_numbers_spread_to_every_rank() -> None:
    ended = train(steps=6, log_every=1, fault="nan:rank=1,step=3")
    assert ended.code == 0
    assert [math.isnan(loss) for loss in losses(ended)] == [False, False, False, True, True, True]


def test_a_leaking_rank_grows(tmp_path: Path) -> None:
    healthy, leaking = (peak(tmp_path, fault) for fault in (None, "leak:rank=0,mb=8"))
    assert 20 * 8 * 0.8 < (leaking - healthy) / 2**20 < 20 * 8 * 1.2


def peak(folder: Path, fault: str | None) -> int:
    """Most memory of its own that rank 0 ever had, bytes."""
    usage = "__import__('resource').getrusage(0).ru_maxrss"
    return int(told_at_exit(folder, usage, steps=20, fault=fault)) * 1024


@pytest.mark.parametrize(
    ("name", "fault"), [("torch-ddp", None), ("torch-zero1", "nan:rank=0,step=2")]
)
def test_no_thread_of_gloo_outlives_training(tmp_path: Path, name: str, fault: str | None) -> None:
    """One that does may abort the process at its exit (pytorch issue 190489)."""
    threads = "[open(f'/proc/self/task/{t}/comm').read() for t in os.listdir('/proc/self/task')]"
    names = told_at_exit(tmp_path, threads, name=name, steps=3, fault=fault)
    assert "python" in names
    assert "gloo" not in names


def told_at_exit(
    folder: Path, expression: str, *, name: str = "torch-ddp", **options: object
) -> str:
    """What the expression is in rank 0 as its Python shuts down."""
    told = folder / "told"
    (folder / "sitecustomize.py").write_text(
        "import atexit, os\n"
        f"def tell(): open({str(told)!r}, 'w').write(str({expression}))\n"
        "if os.environ.get('RANK') == '0': atexit.register(tell)\n"
    )
    assert run(["env", f"PYTHONPATH={folder}", *command(name, **options)]).code == 0
    return told.read_text()


@pytest.mark.parametrize(
    "fault",
    [
        "slow:phase=forward,factor=2",
        "slow:phase=backward,ms=2,burn=1;slow:phase=optimizer,ms=2;slow:phase=other,ms=2",
        "slow:phase=input,ms=2;slow-loader:ms=1",
        "uneven:factor=3",
    ],
)
def test_slowness_changes_nothing_but_time(fault: str) -> None:
    ended = train(steps=10, fault=fault)
    assert ended.code == 0
    assert losses(ended)[-1] < losses(ended)[0]


def test_a_fault_that_makes_no_sense_ends_with_one_sentence() -> None:
    right = command(steps=2, fault="kill")
    ended = run([*right[:-1], "kil"])
    assert ended.code == 1
    assert "position 1: there is no fault 'kil'" in ended.err
    assert first_failure(ended)[1] == 2
