"""`treat` finds what helps an unchanged script and leaves its folder as it was."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from mgpu_doctor.case.recording_case import load_recording
from tests.support.jobs import Ended, run, started, until
from tests.support.nvml import PretendNvml

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((16,), index / 4000), torch.tensor([index / 4000])

def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with open("log.txt", "a") as log:
        for step, (inputs, targets) in enumerate(DataLoader(Slow(), 4)):
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.write(f"{step} {loss.item()}\\n")
            if step % 10 == 0:
                torch.save(model.state_dict(), "checkpoint.pt")
            if step == int(sys.argv[1]):
                sys.exit(int(sys.argv[2]))

if __name__ == "__main__":
    main()
"""
DOCTOR = [sys.executable, "-m", "mgpu_doctor"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script's folder, with an older checkpoint in it."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    (work / "checkpoint.pt").write_bytes(b"from another day")
    monkeypatch.chdir(work)
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return work


def states(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, time of change and mode of each file, and of the folder."""
    return {
        path.name: (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
            path.stat().st_mode,
        )
        for path in (folder, *folder.iterdir())
    }


def treat(*options: str, steps: int, code: int = 0) -> Ended:
    job = [sys.executable, "train.py", str(steps), str(code)]
    return run([*DOCTOR, "treat", "--budget", "4m", "--steps", "30", *options, "--", *job], 400)


@pytest.mark.untimed
def test_workers_help_a_slow_loader_and_nothing_is_left_behind(folder: Path) -> None:
    before = states(folder)
    file = folder.parent / "treatment.toml"
    options = ("--only", "loader-workers", "--only", "loader-prefetch", "--json", "-o", str(file))
    ended = treat(*options, steps=900)
    assert ended.code == 0, ended.err
    assert states(folder) == before
    assert not any((folder.parent / "home").glob("mgpu-doctor-trials-*"))
    others = [each for each in psutil.process_iter(["cwd"]) if each.pid != os.getpid()]
    assert not [each for each in others if each.info["cwd"] == str(folder)]
    report = json.loads(ended.out)
    (workers,) = report["treatments"]
    assert (workers["verdict"], workers["may_change"]) == ("helps", ["nothing"])
    assert workers["saved"]["step_fraction"] > 0.3
    assert workers["loss"]["difference"] < 1e-6
    line = 1 + next(n for n, text in enumerate(SCRIPT.splitlines()) if "DataLoader(Slow" in text)
    assert workers["sites"] == [f"{folder}/train.py:{line}"]
    assert "input-bound" in report["baseline"]["findings"]
    assert [each["name"] for each in report["not_tried"]] == ["loader-prefetch"]
    assert report["kept"] == {"loader-workers": min(4, max(1, len(os.sched_getaffinity(0))))}

    recording = folder.parent / "recording"
    job = [sys.executable, "train.py", "40", "5"]
    treated = ["run", "--treat", str(file), "--quiet", "--dir", str(recording), "--", *job]
    assert run([*DOCTOR, *treated]).code == 5
    metadata = load_recording(recording).ranks[0].metadata
    assert metadata.loader.workers == report["kept"]["loader-workers"]
    assert metadata.treatments[0].changed == 1


@pytest.mark.untimed
def test_a_job_that_ends_before_the_trial_would_is_measured_as_far_as_it_goes(folder: Path) -> None:
    ended = treat("--only", "loader-workers", "--steps", "100", "--json", steps=45)
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    assert 20 <= report["baseline"]["steps"] <= 36
    assert [each["verdict"] for each in report["treatments"]] == ["helps"]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.pt", "train.py"]


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("steps", "code", "sentence"),
    [
        (3, 9, "exit code 9"),
        (12, 0, "fewer than 30 steps"),
        (-1, 0, ""),
    ],
    ids=["fails", "short", "no steps"],
)
def test_a_job_that_cannot_be_tried_is_explained_in_a_sentence(
    steps: int, code: int, sentence: str, folder: Path
) -> None:
    if steps < 0:
        (folder / "train.py").write_text("import torch; print('no step')")
        sentence = "no training step was seen"
    before = states(folder)
    ended = treat(steps=steps, code=code)
    assert ended.code == 3
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1
    assert sentence in ended.err
    assert states(folder) == before


@pytest.mark.untimed
@pytest.mark.usefixtures("folder")
def test_the_best_batch_of_a_job_whose_steps_cost_the_same() -> None:
    """Each rank sleeps 30 ms per step: twice the batch makes twice the samples per second."""
    script = Path(__file__).parents[1] / "jobs" / "plain_ddp.py"
    rows = ["--steps", "5000", "--batch", "64", "--fault", "forward", "--rank", "-1", "--ms", "30"]
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["--goal", "throughput", "--steps", "20", "--budget", "5m", "--json", "--"]
    ended = run([*DOCTOR, "treat", *words, *job, str(script), *rows], 400)
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    rates = [point["samples_per_second"] for point in report["curve"]]
    assert rates[2] > 1.5 * rates[0]
    assert report["curve"][0]["samples_per_step"] == 128
    assert report["is_better"]
    assert report["saved_per_sample"]["low"] > 0.2
    assert report["best"]["batch"] >= 256
    assert report["best"]["ranks"] == 2


@pytest.mark.untimed
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("others", "best"), [(0, 10240), (20000, 6144)])
def test_the_largest_batch_that_fits_on_a_pretend_gpu(
    others: int, best: int, nvml: PretendNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """81,559 MiB, of which the model takes 2,000 and a sample 7: 11,365 samples fit. Where others
    have 20,000, a fifth of the rest stays free: 6,748."""
    for name, value in nvml.environment(tmp_path / "state").items():
        monkeypatch.setenv(name, value)
    script = Path(__file__).parents[1] / "jobs" / "gpu_memory.py"
    words = [
        "--goal",
        "memory",
        "--yes",
        "--steps",
        "100",
        "--budget",
        "6m",
        "--json",
        "--",
        sys.executable,
    ]
    first = 1024 if others else 4096
    job = [str(script), "--batch", str(first), "--others", str(others)]
    ended = run([*DOCTOR, "treat", *words, *job], 600)
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    assert report["best"]["batch"] == best
    for point in report["curve"]:
        assert point["memory_bytes"] in (None, (2000 + 7 * point["batch"]) << 20)
    refused = [point for point in report["curve"] if point["reason"]]
    whose = "other jobs leave on its GPU" if others else "its GPU has"
    assert {point["reason"] for point in refused} == {
        f"it is predicted to need more memory than {whose}"
    }


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TRIAL = """
import json, sys
from mgpu_doctor.treat.trial_folder import trial_folder
from mgpu_doctor.treat.trial_runner import TrialRunner

with trial_folder() as folder:
    runner = TrialRunner([sys.executable, *sys.argv[1:]], folder, private=True)
    trial = runner.run({"gc-freeze": True}, steps=20, limit=200)
    end = json.loads((folder / "000" / "recording" / "end.json").read_text())
changed = [each.changed for each in trial.treated]
print(json.dumps({"steps": len(trial.result.seconds), "changed": changed, "end": end}))
"""
"""One of the trials of `treat`, in a process of its own: it kills what its descendants leave."""


@pytest.mark.untimed
@pytest.mark.parametrize(
    "words",
    [
        ("spawn_ddp.py", "--steps", "600"),
        (*TORCHRUN, "lightning_fit.py", "--steps", "600"),
        (*TORCHRUN, "accelerate_loop.py", "--steps", "600"),
        ("keras_fit.py", "--steps", "600"),
    ],
    ids=["spawn", "lightning", "accelerate", "keras"],
)
def test_scripts_of_several_files_and_their_folder_stay_as_they_are(
    words: tuple[str, ...], folder: Path
) -> None:
    for script in (Path(__file__).parents[1] / "jobs").glob("*.py"):
        shutil.copy(script, folder)
    before = states(folder)
    ended = run([sys.executable, "-c", TRIAL, *words], 300)
    assert ended.code == 0, ended.err
    trial = json.loads(ended.out)
    assert trial["steps"] == 20
    assert trial["end"]["asked"] == "SIGTERM"
    (changed,) = trial["changed"]
    assert changed > 0
    assert states(folder) == before
    others = [each for each in psutil.process_iter(["cwd"]) if each.pid != os.getpid()]
    assert not [each for each in others if each.info["cwd"] == str(folder)]


STOPPED = """
import sys, time
import psutil
from mgpu_doctor.treat.trial_folder import trial_folder
from mgpu_doctor.treat.trial_runner import StoppedError, TrialRunner

stops = time.monotonic() + float(sys.argv[1])
with trial_folder() as folder:
    runner = TrialRunner(
        [sys.executable, "job.py"],
        folder,
        private=True,
        is_stopped=lambda: time.monotonic() > stops,
    )
    try:
        runner.run({}, steps=20, limit=100)
    except StoppedError:
        print(len(psutil.Process().children(recursive=True)))
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("written", "w")
for _ in range(2):
    if not os.fork():
        os.setsid()
        break
time.sleep(100)
"""


@pytest.mark.untimed
@pytest.mark.parametrize("after", ["0.05", "0.2", "0.4", "0.6", "0.8", "1", "1.5"])
def test_a_trial_that_is_stopped_early_leaves_nothing(after: str, folder: Path) -> None:
    """While Python, the private view or the job starts: nobody knows the job's pid yet."""
    (folder / "job.py").write_text(STUBBORN)
    before = states(folder)
    ended = run([sys.executable, "-c", STOPPED, after], 100)
    assert ended.code == 0, ended.err
    assert ended.out == "0\n"
    assert states(folder) == before


@pytest.mark.untimed
def test_a_trial_does_not_outlive_a_session_that_is_killed(folder: Path) -> None:
    """The job ignores SIGTERM, and two of its processes have left its session."""
    (folder / "job.py").write_text(STUBBORN)

    def list_processes() -> list[str]:
        return [
            " ".join(each.info["cmdline"] or ())
            for each in psutil.process_iter(["cwd", "cmdline"])
            if each.info["cwd"] == str(folder) and each.pid != os.getpid()
        ]

    with started([sys.executable, "-c", STOPPED, "1000"]) as session:
        until(lambda: sum(each.endswith(" job.py") for each in list_processes()) == 3)
        session.kill()
        until(lambda: not list_processes())
    home = folder.parent / "home"
    until(lambda: not any(home.glob("mgpu-doctor-trials-*")))
