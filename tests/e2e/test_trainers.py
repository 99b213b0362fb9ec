"""The PyTorch trainers other than torch-ddp: they learn, are diagnosed, and end."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from mgpu_trainers import catalogue

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from tests.support.exit_threads import assert_no_gloo, run_noting_threads
from tests.support.jobs import Ended, forked_trainer, gone, run, started, until
from tests.support.jobs_in_turn import trainer_job
from tests.support.observed_jobs import Observed, list_warnings, plan, printed_by, run_undisturbed

pytestmark = pytest.mark.slow

ASKED_WHILE_STARTING = """
import os, signal, subprocess
start = subprocess.Popen.__init__
def begin(self, *args, **options):
    start(self, *args, **options)
    if "RANK" not in os.environ and "RANK" in (options.get("env") or {}):
        open(os.environ["MARK"], "w").write(str(self.pid))
        signal.raise_signal(signal.SIGTERM)
subprocess.Popen.__init__ = begin
"""
"""What is run at the start of every process: torchrun gets SIGTERM when it has one rank."""
SMALL = {"model": "cnn-nano", "device": "cpu"}
TOLD = {"torch-zero1": "zero1", "torch-localsgd": "localsgd"}
"""What the doctor calls a strategy that it knows by more than its collectives."""


LEARNING = {
    "torch-zero1": trainer_job("torch-zero1", steps=60, compress="powersgd"),
    "torch-localsgd": trainer_job("torch-localsgd", steps=60),
    "torch-diloco": trainer_job("torch-diloco", steps=60, sync_every=10),
}
LEARNING_IN_PARTS = {
    "fsdp": trainer_job("torch-fsdp", steps=60),
    "pipeline": trainer_job("torch-pp", steps=60),
}
"""Strategy -> job."""
SLOW_FORWARD = "slow:rank=1,phase=forward,ms="
SLOW = {
    # A model with buffers (batch norm) synchronizes in its forward pass, too, where the other rank
    # waits for the late one.
    "torch-ddp": (
        trainer_job("torch-ddp", steps=40, fault="slow:rank=1,phase=input,ms=60"),
        "straggler-input",
    ),
    "torch-localsgd": (
        trainer_job("torch-localsgd", steps=110, sync_every=4, fault=f"{SLOW_FORWARD}60"),
        "straggler-compute",
    ),
    # Its steps are long where cores are few, and what is a small part of them is no warning.
    "torch-tp": (
        trainer_job("torch-tp", model="gpt-nano", steps=40, fault=f"{SLOW_FORWARD}80"),
        "straggler-compute",
    ),
    "torch-pp": (
        trainer_job("torch-pp", model="gpt-nano", steps=80, fault="heavy-stage:rank=1"),
        "imbalance-stage",
    ),
    # The other rank seldom waits for the one with more data.
    "torch-diloco": (
        trainer_job("torch-diloco", model="gpt-nano", steps=140, fault="uneven:rank=1,factor=3"),
        "imbalance-data",
    ),
}
plan(*LEARNING.values(), *LEARNING_IN_PARTS.values(), *(slow for slow, _ in SLOW.values()))


def command(name: str, **options: object) -> list[str]:
    return catalogue.command(catalogue.find(name), None, {**SMALL, **options})


def losses(out: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", out, re.MULTILINE)]


def accuracy(out: str) -> float:
    found = re.search(r"^validation loss \S+ accuracy (\S+)%$", out, re.MULTILINE)
    assert found, out
    return float(found[1])


def assert_learned(out: str) -> None:
    assert losses(out)[-1] < 0.3 * losses(out)[0]
    assert accuracy(out) > 80


def run_observed(folder: Path, name: str, *options: str) -> tuple[Ended, Diagnosis]:
    recording = folder / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "train", name, "-q", "--dir", str(recording)]
    job = [*doctor, "--model", "cnn-nano", "--device", "cpu", *options]
    ended = run_undisturbed(job, recording)
    assert ended.code == 0, ended.err
    return ended, diagnose(load_recording(recording))


def codes_and_culprits(diagnosis: Diagnosis) -> list[tuple[str, list[int | None]]]:
    return [(one.code, [each.rank for each in one.culprits]) for one in list_warnings(diagnosis)]


@pytest.mark.parametrize("name", LEARNING)
def test_it_learns_and_the_doctor_has_nothing_to_say(observed: Observed, name: str) -> None:
    case = observed.case_of(LEARNING[name])
    assert_learned(printed_by(case))
    assert codes_and_culprits(diagnose(case)) == []
    assert case.job.strategy == TOLD.get(name, "manual")


@pytest.mark.parametrize("strategy", LEARNING_IN_PARTS)
def test_it_learns(observed: Observed, strategy: str) -> None:
    """The doctor has nothing to say of healthy jobs of this kind: `test_parallel_structures`."""
    case = observed.case_of(LEARNING_IN_PARTS[strategy])
    assert_learned(printed_by(case))
    assert case.job.strategy == strategy


@pytest.mark.parametrize("name", SLOW)
def test_the_rank_that_others_wait_for_is_named(observed: Observed, name: str) -> None:
    slow, code = SLOW[name]
    assert codes_and_culprits(diagnose(observed.case_of(slow))) == [(code, [1])]


@pytest.mark.untimed
def test_a_dead_worker_is_missed_by_nobody_and_a_dead_server_by_all(tmp_path: Path) -> None:
    options = ("--steps", "40", "--log-every", "5", "--fault", "kill:rank=2,step=10")
    ended, diagnosis = run_observed(tmp_path, "torch-ps", *options)
    job, ranks = diagnosis.case.job, diagnosis.case.ranks
    assert (job.strategy, diagnosis.servers) == ("ps", frozenset({0}))
    # 40 updates of one worker and 9 of the other; it learns by the first ones what a step is.
    assert 47 <= len(ranks[0].steps) <= 50
    assert "rank 2 was killed by SIGKILL; the others go on" in ended.err
    assert losses(ended.out)[-1] < 0.5 * losses(ended.out)[0]
    ended = run(command("torch-ps", steps=40, log_every=5, fault="kill:rank=0,step=10"))
    assert (ended.code, len(ended.err.splitlines())) == (137, 1)
    assert "rank 0, the server, was killed by SIGKILL" in ended.err


@pytest.mark.untimed
def test_the_largest_batch_is_found_before_the_ranks_start() -> None:
    ended = run(command("torch-ddp", steps=3, batch="auto", cache="on", fault="slow-loader:ms=1"))
    assert ended.code == 0, ended.err
    found = re.search(r"^torch-ddp: --batch (\d+): (.*)$", ended.err, re.MULTILINE)
    assert found, ended.err
    assert 32 <= int(found[1]) <= 750  # of two ranks, which share 1,500 samples
    assert len(losses(ended.out)) == 1


def test_what_the_devices_cannot_show_is_reported(tmp_path: Path) -> None:
    ended, diagnosis = run_observed(tmp_path, "torch-dp", "--steps", "60")
    assert "torch-dp: DataParallel divides batches over GPUs only" in ended.err
    assert accuracy(ended.out) > 80
    assert codes_and_culprits(diagnosis) == []


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torch-zero1", {"compress": "bf16", "precision": "fp16", "global_batch": 64, "warmup": 5}),
        ("torch-pp", {"model": "gpt-nano", "schedule": "zbv"}),
    ],
)
def test_practices_learn_and_go_on_from_a_checkpoint(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str, options: dict[str, object]
) -> None:
    """Nor does a thread of gloo outlive training."""
    saves = {"steps": 12, "log_every": 1, "save_every": 12, "save_to": tmp_path}
    first = run(forked_trainer(name, **{**SMALL, **options, **saves}))
    assert first.code == 0, first.err
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint.pt"]
    again = command(name, **options, steps=20, log_every=1, save_to=tmp_path)
    second, threads = run_noting_threads(again, tmp_path_factory.mktemp("threads"))
    assert_no_gloo(threads)
    assert "resumed after step 12" in second.out
    assert len(losses(second.out)) == 8
    assert max(losses(second.out)) < losses(first.out)[0]


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("name", "asked"), [("torch-single", signal.SIGINT), ("torch-fsdp", signal.SIGTERM)]
)
def test_it_ends_when_asked_to(name: str, asked: signal.Signals) -> None:
    with started(command(name, steps=100_000, log_every=1)) as job:
        assert job.stdout
        assert job.stdout.readline().startswith("step 1 loss")
        ranks = psutil.Process(job.pid).children(recursive=True)
        job.send_signal(asked)
        out, err = job.communicate(timeout=150)
        until(lambda: all(gone(each.pid) for each in ranks))
        assert job.returncode == (-asked if name == "torch-single" else 1)
        assert "validation" not in out
        assert "KeyboardInterrupt" not in err


@pytest.mark.untimed
def test_a_rank_that_its_launcher_forgot_while_it_was_asked_to_end_ends(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ASKED_WHILE_STARTING)
    mark = tmp_path / "rank"
    given = [f"PYTHONPATH={tmp_path}", f"MARK={mark}"]
    ended = run(["env", *given, *command("torch-ddp", steps=100_000)])
    assert ended.code != 0
    rank = int(mark.read_text())
    until(lambda: gone(rank))


@pytest.mark.untimed
def test_a_server_that_does_not_answer_is_named_and_the_job_ends(tmp_path: Path) -> None:
    """Its workers give up after a while, and nobody else would end it."""
    recording = tmp_path / "recording"
    train = ["-m", "mgpu_doctor", "train", "torch-ps", "-q", "--dir", str(recording)]
    options = ["--model", "cnn-nano", "--device", "cpu", "--timeout", "18"]
    ended = run([sys.executable, *train, *options, "--fault", "hang:rank=0,step=20"])
    assert ended.code == 1, ended.err
    assert "goes on without workers; ending it" in ended.err
    case = load_recording(recording)
    found = list_warnings(diagnose(case))
    seen = [(one.code, [culprit.rank for culprit in one.culprits], one.victims) for one in found]
    ends = [(rank.state, rank.exit_code, rank.signal, rank.now, rank.error) for rank in case.ranks]
    assert seen == [("hang-rank-behind", [0], (1, 2))], [[one.title for one in found], ends]


@pytest.mark.untimed
def test_the_loss_on_record_is_not_the_scaled_one(tmp_path: Path) -> None:
    options = ("--steps", "12", "--log-every", "1", "--precision", "fp16")
    ended, diagnosis = run_observed(tmp_path, "torch-single", *options)
    recorded = diagnosis.case.ranks[0].steps["loss"]
    assert recorded == pytest.approx(losses(ended.out), abs=1e-3)
