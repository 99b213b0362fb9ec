"""Recordings of jobs that one launcher runs one after the other. It loads torch once for all of
them, which takes half the time of a short job."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_trainers import catalogue

from mgpu_doctor.recording import layout
from tests.support.jobs import (
    Launcher,
    Turn,
    forked,
    forked_cluster,
    forked_in_turn,
    run,
    split_turns,
)


@dataclass(frozen=True)
class Job:
    """A script of tests/jobs, or a module, and its options. Jobs that run in turn are all of
    PyTorch or all of TensorFlow."""

    script: str
    options: tuple[str, ...] = ()
    ranks: int = 2
    launcher: Launcher = forked

    @property
    def command(self) -> list[str]:
        return self.launcher(self.script, *self.options, ranks=self.ranks)


def job(script: str, *options: str, ranks: int = 2) -> Job:
    """`script`: without `.py`."""
    return Job(f"{script}.py", options, ranks)


def cluster_job(script: str, *options: str, ranks: int = 1) -> Job:
    """The same with TensorFlow."""
    return Job(f"{script}.py", options, ranks, forked_cluster)


def trainer_job(name: str, **options: object) -> Job:
    """Two ranks of a trainer of PyTorch."""
    trainer = catalogue.find(name)
    command = catalogue.command(trainer, 2, {"model": "cnn-nano", "device": "cpu", **options})
    return Job(trainer.module, tuple(command[command.index(trainer.module) + 1 :]))


def record_in_turn(folder: Path, jobs: Sequence[Job]) -> list[Path]:
    """A recording of each of the jobs, all of which must succeed."""
    whole = folder / "whole"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(whole), "--"]
    ended = run([*doctor, *forked_in_turn([each.command for each in jobs])], 400.0)
    assert ended.code == 0, ended.err
    parts = []
    for number, (each, turn) in enumerate(zip(jobs, split_turns(ended.out), strict=True)):
        parts.append(folder / f"part-{number}")
        _copy_part(whole, parts[-1], each, turn)
    return parts


def _copy_part(whole: Path, part: Path, job: Job, turn: Turn) -> None:
    """The recording of one job: its boxes and command, and what was printed and sampled then."""

    def leave_out(folder: str, names: list[str]) -> list[str]:
        if Path(folder).name != layout.BOXES:
            return []
        return [name for name in names if int(name.split(".")[-3]) not in turn.pids]

    shutil.copytree(whole, part, ignore=leave_out)
    info = json.loads((part / layout.INFO).read_text(encoding="utf-8"))
    info |= {"command": job.command, "started": turn.began}
    (part / layout.INFO).write_text(json.dumps(info), encoding="utf-8")
    for printed in part.rglob("stdout.log"):
        printed.write_text(turn.out, encoding="utf-8")
    for samples in part.rglob(layout.HOST_SAMPLES):
        lines = samples.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if turn.began <= json.loads(line)["at"] <= turn.ended]
        samples.write_text("".join(kept), encoding="utf-8")
