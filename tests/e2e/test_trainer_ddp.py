"""The data-parallel trainer: it learns, and each planted fault has its effect."""

import math
import re
import subprocess
from pathlib import Path

import psutil
import pytest
from mgpu_trainers import catalogue

from tests.support.exit_threads import assert_no_gloo, run_noting_threads
from tests.support.jobs import Ended, forked_trainer, run, started, until

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
    ended = run(forked_trainer("torch-ddp", model="gpt-nano", device="cpu", steps=60, log_every=5))
    assert ended.code == 0, ended.err
    assert sum(losses(ended)[-3:]) < 0.7 * sum(losses(ended)[:3])
    found = re.search(r"^validation loss \S+ accuracy (\S+)%$", ended.out, re.MULTILINE)
    assert found
    assert float(found[1]) > 30


def test_two_jobs_run_side_by_side() -> None:
    """One with workers and accumulation, which leaves nothing behind; in the other, gradients that
    are no numbers spread to every rank."""
    workers = {"workers": 1, "accumulate": 2}
    fault = {"fault": "nan:rank=1,step=3", "model": "cnn-nano", "device": "cpu"}
    lost = forked_trainer("torch-ddp", steps=6, log_every=1, **fault)
    with started(command(steps=8, log_every=1, **workers)) as first:
        second = subprocess.run(lost, capture_output=True, text=True, check=False, timeout=140)
        out, err = first.communicate(timeout=140)
    assert (second.returncode, first.returncode) == (0, 0)
    assert len(losses(Ended(0, out, err))) == 8
    assert "Traceback" not in err
    lost_at = [math.isnan(loss) for loss in losses(Ended(0, second.stdout, second.stderr))]
    assert lost_at == [False, False, False, True, True, True]


def test_a_rank_ends_by_the_planted_signal() -> None:
    ended = train(steps=6, log_every=1, fault="kill:step=3,signal=SEGV")
    assert ended.code == 1
    assert "-11" in re.findall(r"exitcode +: (-?\d+)", ended.err)
    assert len(losses(ended)) == 2


def test_a_planted_exit_has_its_code() -> None:
    """Of one process: threads of gloo may abort a rank that calls `sys.exit`."""
    given = {"model": "cnn-nano", "device": "cpu", "steps": 6, "log_every": 1}
    fault = "exit:rank=0,step=3,code=7"
    single = catalogue.command(catalogue.find("torch-single"), None, {**given, "fault": fault})
    ended = run(single)
    assert ended.code == 7, ended.err
    assert len(losses(ended)) == 2


def test_an_exception_reaches_standard_error() -> None:
    fault = {"fault": "exception:rank=0,step=3", "model": "cnn-nano", "device": "cpu"}
    ended = run(forked_trainer("torch-ddp", steps=6, log_every=1, **fault))
    assert ended.code != 0
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


def test_slowness_changes_nothing_but_time(tmp_path: Path) -> None:
    """Nor does a thread of gloo outlive training."""
    slow = "slow:phase=backward,ms=2,burn=1;slow:phase=optimizer,ms=2;slow:phase=other,ms=2"
    rest = "slow:phase=forward,factor=2;slow:phase=input,ms=2;slow-loader:ms=1;uneven:factor=3"
    job = command(steps=10, fault=f"{slow};{rest}")
    ended, threads = run_noting_threads(job, tmp_path)
    assert losses(ended)[-1] < losses(ended)[0]
    assert_no_gloo(threads)


def test_a_fault_that_makes_no_sense_ends_with_one_sentence() -> None:
    given = {"steps": 2, "fault": "kill:rank=0"}
    right = catalogue.command(catalogue.find("torch-single"), None, given)
    ended = run([*right[:-1], "kil"])
    assert ended.code == 2
    assert "position 1: there is no fault 'kil'" in ended.err
    assert len(ended.err.splitlines()) == 1
