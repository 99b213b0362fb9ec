"""The TensorFlow trainers: they learn, their ranks agree, and they end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from mgpu_trainers import catalogue, cluster

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from tests.support.jobs import Ended, gone, run, started, until
from tests.support.observed_jobs import list_warnings, run_undisturbed

pytestmark = pytest.mark.slow


def command(name: str, ranks: int | None = None, **options: object) -> list[str]:
    return catalogue.command(catalogue.find(name), ranks, {"model": "cnn-nano", **options})


def losses(ended: Ended) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", ended.out, re.MULTILINE)]


def accuracy(ended: Ended) -> float:
    found = re.search(r"^validation loss \S+ accuracy (\S+)%$", ended.out, re.MULTILINE)
    assert found, ended.err
    return float(found[1])


def observed(folder: Path, name: str, *options: str) -> tuple[Ended, Diagnosis]:
    """What a trainer printed, and what the doctor says; the last option is its fault."""
    *rest, fault = options
    recording = folder / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "train", name, "-q", "--dir", str(recording)]
    ended = run_undisturbed([*doctor, "--model", "cnn-nano", *rest, "--fault", fault], recording)
    assert ended.code == 0, ended.err
    return ended, diagnose(load_recording(recording))


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tf-mirrored", {"accumulate": 2, "precision": "bf16"}),
        ("tf-multiworker", {"fault": "slow:rank=1,phase=forward,ms=5"}),
    ],
)
def test_replicas_learn_and_stay_alike(name: str, options: dict[str, Any]) -> None:
    ended = run(command(name, steps=40, device="cpu", **options))
    assert ended.code == 0, ended.err
    assert losses(ended)[-1] < 0.4 * losses(ended)[0]
    assert accuracy(ended) > 70
    assert "2 replicas hold the same weights" in ended.out


@pytest.mark.untimed
def test_a_killed_worker_ends_the_job_with_its_code_and_leaves_nobody() -> None:
    fault = "kill:rank=1,step=5"
    with started(command("tf-multiworker", steps=100_000, device="cpu", fault=fault)) as job:
        assert job.stdout
        assert job.stdout.readline().startswith("step 1 loss")
        workers = psutil.Process(job.pid).children(recursive=True)
        _, said = job.communicate(timeout=150)
        assert job.returncode == 128 + signal.SIGKILL
        assert "worker 1 was ended by SIGKILL; ending the others" in said
        until(lambda: all(gone(each.pid) for each in workers))


@pytest.mark.untimed
def test_a_worker_that_never_comes_is_named_and_not_waited_for_without_an_end(
    tmp_path: Path,
) -> None:
    pair = cluster.local_cluster(2, 0)
    worker = [sys.executable, "-m", "mgpu_trainers.tensorflow.tf_multiworker", "--timeout", "8"]
    alone = ["env", f"TF_CONFIG={pair.config(cluster.Task('worker', 0))}", *worker]
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "--dir", str(tmp_path / "recording")]
    # It only waits, beside whatever else runs here.
    ended = subprocess.run([*doctor, "--", *alone], capture_output=True, text=True, check=False)
    absent = f"worker 1 ({pair.addresses['worker'][1]})"
    assert f"{absent} did not come within 8 s" in ended.stderr
    assert ended.returncode == 1
    (found,) = list_warnings(diagnose(load_recording(tmp_path / "recording")))
    assert found.code == "failed-tf-worker-missing"
    assert found.title.startswith("Worker 1 never joined")


@pytest.mark.untimed
def test_a_worker_that_starts_and_never_joins_is_named_and_ended_with_the_others() -> None:
    """In one job worker 0, in the other worker 1. They mostly wait, so they run at once."""
    given: dict[str, Any] = {"timeout": 15, "device": "cpu"}
    with ExitStack() as jobs:
        running = [
            jobs.enter_context(
                started(command("tf-multiworker", fault=f"missing:rank={rank}", **given))
            )
            for rank in range(2)
        ]
        workers = []
        for job in running:
            launcher = psutil.Process(job.pid)
            until(lambda launcher=launcher: len(launcher.children()) == 2)  # type: ignore[misc]
            workers += launcher.children()
        for rank, job in enumerate(running):
            _, said = job.communicate(timeout=150)
            assert job.returncode == 1
            absent = rf"worker {rank} \(127\.0\.0\.1:\d+\) did not come within 15 s\n"
            assert re.search(absent, said)
        until(lambda: all(gone(each.pid) for each in workers))


@pytest.mark.untimed
def test_asynchronous_workers_learn_though_one_is_killed(tmp_path: Path) -> None:
    ended, diagnosis = observed(tmp_path, "tf-ps", "--steps", "60", "kill:rank=1,step=20")
    assert "worker 1 was ended by SIGKILL; the others go on" in ended.err
    assert accuracy(ended) > 70
    assert diagnosis.case.job.outcome is Outcome.COMPLETED
    (lost,) = list_warnings(diagnosis)
    assert lost.code == "worker-lost"
    assert "/job:worker/replica:0/task:1 went away" in lost.title


def test_a_slow_worker_of_several_is_named(tmp_path: Path) -> None:
    # The chief waits for both at every second step: a fast worker would else do nearly all.
    often = ("--steps", "80", "--log-every", "2")
    _, diagnosis = observed(tmp_path, "tf-ps", *often, "slow:rank=1,ms=120")
    (slow,) = (one for one in diagnosis.findings if one.code == "straggler-worker")
    assert [one.device for one in slow.culprits] == ["/job:worker/replica:0/task:1"]


def test_a_slow_replica_is_named_and_its_data_set_reported(tmp_path: Path) -> None:
    fault = "slow:rank=1,phase=forward,ms=60"
    _, diagnosis = observed(tmp_path, "tf-mirrored", "--steps", "50", fault)
    (late,) = (one for one in diagnosis.findings if one.code == "imbalance-device")
    assert [one.device for one in late.culprits] == ["cpu:1"]
    (made,) = (
        one for one in diagnosis.case.ranks[0].metadata.pipelines if "Shuffle" in one.operations
    )
    assert (made.operations[0], made.prefetch) == ("Prefetch", 2)


@pytest.mark.untimed
def test_without_a_tpu_it_says_so() -> None:
    ended = run(command("tf-tpu"))
    assert ended.code == 1
    told = "tf-tpu needs a TPU: this TensorFlow finds no TPU on this machine"
    assert ended.err.splitlines()[-1] == told
