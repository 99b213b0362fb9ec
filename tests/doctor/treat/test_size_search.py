"""The search for the best batch size and number of ranks, on simulated jobs, and its report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from mgpu_doctor.analysis.trials.trial_run import TrialRun
from mgpu_doctor.case.device_samples import Device, DeviceProcess, DeviceSample
from mgpu_doctor.treat import memory_room, size_search
from mgpu_doctor.treat.job_size import (
    ACCUMULATION_OPTIONS,
    BATCH_OPTIONS,
    RANK_OPTIONS,
    find_setting,
)
from mgpu_doctor.treat.size_report import is_better, render_json, render_sizes
from mgpu_doctor.treat.size_search import Goal, SizeSearch, UnknownSizeError
from mgpu_doctor.treat.trial_runner import FIRST_STEP, Problem, Trial, TrialFailure

SCHEMA = Draft202012Validator(
    json.loads(
        (Path(__file__).parents[3] / "docs" / "treat-goal.schema.json").read_text(encoding="utf-8")
    )
)
COMMAND = ("torchrun", "--nproc-per-node=4", "train.py", "--batch-size", "8", "--lr", "0.1")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("command", "batch", "ranks"),
    [
        (COMMAND, ("--batch-size", 8), ("--nproc-per-node", 4)),
        (("mpirun", "-np", "2", "python", "t.py", "--bs=32"), ("--bs", 32), ("-np", 2)),
        (("python", "t.py", "--per_device_train_batch_size", "16"),
         ("--per_device_train_batch_size", 16), None),
        (("python", "t.py", "--batch-size", "auto", "--ranks=0"), None, None),
        (("python", "t.py", "batch-size", "8", "--bs"), None, None),
    ],
)  # fmt: skip
def test_sizes_that_a_command_names(command: Sequence[str], batch: object, ranks: object) -> None:
    for options, expected in ((BATCH_OPTIONS, batch), (RANK_OPTIONS, ranks)):
        setting = find_setting(command, options)
        assert (setting and (setting.option, setting.value)) == expected
        if setting is not None:
            changed = setting.write(command, "77")
            assert find_setting(changed, options) == type(setting)(
                setting.option, setting.place, "77"
            )
            assert sum(old != new for old, new in zip(command, changed, strict=True)) == 1


def simulate(
    monkeypatch: pytest.MonkeyPatch,
    *,
    fixed: float = 0.01,
    per_sample: float = 0.001,
    per_rank: float = 0.0,
    most: int = 10**9,
    free: int = 10**12,
    noise: float = 0.01,
    others_on_gpu: int | None = None,
) -> list[tuple[int, int]]:
    """Lets searches run a job whose step takes `fixed` seconds, `per_sample` for each of its batch
    and `per_rank` for each rank, and which crashes with a batch above `most`. `others_on_gpu`: each
    rank has a GPU of 600 MiB, of which other jobs use so much; None: there are no GPUs."""
    random = np.random.default_rng(4)
    ran: list[tuple[int, int]] = []

    class Runner:
        def __init__(self, command: Sequence[str], _: Path, **_others: object) -> None:
            self.batch, self.ranks, self.micro_batches = (
                found.value if (found := find_setting(command, options)) else 1
                for options in (BATCH_OPTIONS, RANK_OPTIONS, ACCUMULATION_OPTIONS)
            )

        def run(self, _: object, *, steps: int, **_others: Any) -> Trial:
            ran.append((self.batch, self.ranks))
            if self.batch > most:
                return Trial(TrialFailure(Problem.CRASHED, "Rank 0 ran out of memory"), 0.0)
            whole = (fixed + per_sample * self.batch) * self.micro_batches + per_rank * self.ranks
            seconds = whole * np.exp(random.normal(0, noise, steps))
            numbers = {"samples": np.full(steps, self.batch * self.micro_batches)}
            ranks = [SimpleNamespace(steps=numbers, pid=1 + rank) for rank in range(self.ranks)]
            memory = (100 + self.batch) * MIB
            gpus: tuple[Device, ...] = ()
            if others_on_gpu is not None and len(ran) > 1:  # the first is too short for a sample
                gpus = tuple(gpu_of(rank.pid, memory, others_on_gpu) for rank in ranks)
            measured = TrialRun(FIRST_STEP, seconds, None, memory, is_gpu_memory=bool(gpus))
            case: Any = SimpleNamespace(ranks=ranks, device_samples=[DeviceSample(0.0, gpus)])
            return Trial(measured, 0.0, (), case)

    monkeypatch.setattr(size_search, "TrialRunner", Runner)
    monkeypatch.setattr(memory_room, "read_memory", lambda: (free, 10**12))
    return ran


def gpu_of(pid: int, memory: int, others: int) -> Device:
    """A GPU of 600 MiB with this process, and others of which one uses `others`."""
    processes = [DeviceProcess(pid, memory)]
    if others:
        processes.append(DeviceProcess(1000, others))
    return Device(
        index=pid,
        memory_used=memory + others,
        memory_total=600 * MIB,
        processes=tuple(processes),
    )


def search(goal: Goal, folder: Path, command: Sequence[str] = COMMAND) -> SizeSearch:
    made = SizeSearch(command, goal, private=True)
    made.run(folder, budget=60.0, report=lambda *_: None)
    SCHEMA.validate(json.loads(render_json(made)))
    assert render_sizes(made, unicode=False).isascii()
    return made


def test_throughput_grows_until_a_larger_batch_gains_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = simulate(monkeypatch)
    made = search(Goal.THROUGHPUT, tmp_path)
    assert [batch for batch, _ in ran[:-4]] == [8, 16, 32, 64, 128, 256, 512]
    best = made.find_best()
    assert best is not None
    assert ran[-4:] == [(8, 4), (best.size.batch, 4), (best.size.batch, 4), (8, 4)]
    assert is_better(made)
    assert made.saved is not None
    assert made.saved.low < 1 - (0.01 / 512 + 0.001) / (0.01 / 8 + 0.001) < made.saved.high + 0.02
    assert made.points[0].per_second == pytest.approx(32 / 0.018, rel=0.02)
    rate = f"{0.1 * best.size.batch / 8:.6g}"
    kept = f"torchrun --nproc-per-node=4 train.py --batch-size {best.size.batch} --lr {rate}"
    assert kept in render_sizes(made, unicode=True)
    assert "the learning rate grew, warm up" in render_sizes(made, unicode=True)


def test_micro_batches_are_exchanged_for_a_larger_batch_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """12 micro-batches of 8: at the same global batch 6 of 16 and 3 of 32; then the batch grows,
    and the learning rate with it."""
    simulate(monkeypatch, fixed=0.1, per_sample=0.001, most=64)
    command = ("python", "t.py", "--bs", "8", "--gradient_accumulation_steps=12", "--lr", "1e-3")
    made = search(Goal.MEMORY, tmp_path, command)
    sizes = [(point.size.batch, point.size.micro_batches) for point in made.points]
    assert sizes == [(8, 12), (16, 6), (32, 3), (64, 3), (128, 3), (96, 3), (80, 3)]
    assert [point.samples for point in made.points[:4]] == [96, 96, 96, 192]
    written = [made.write_command(point.size)[-3:] for point in made.points[1:4]]
    assert written[:2] == [
        ["--gradient_accumulation_steps=6", "--lr", "1e-3"],
        ["--gradient_accumulation_steps=3", "--lr", "1e-3"],
    ]
    assert written[2] == ["--gradient_accumulation_steps=3", "--lr", "0.002"]
    assert "A larger batch changes the training" in render_sizes(made, unicode=True)


def test_a_batch_size_that_changes_nothing_is_not_said_to_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulate(monkeypatch, fixed=0.0, noise=0.2)
    claims = [is_better(search(Goal.THROUGHPUT, tmp_path)) for _ in range(40)]
    assert sum(claims) <= 3


def test_the_largest_batch_that_fits_before_a_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = simulate(monkeypatch, most=90)
    made = search(Goal.MEMORY, tmp_path)
    assert [batch for batch, _ in ran] == [8, 16, 32, 64, 128, 96, 80, 8, 80, 80, 8]
    best = made.find_best()
    assert best is not None
    assert best.size.batch == 80
    assert is_better(made)
    text = render_sizes(made, unicode=True)
    assert "Rank 0 ran out of memory" in text
    assert "The largest batch that fits of these: 80." in text
    assert "Memory per rank: 108 MiB ± 0 B → 180 MiB ± 0 B." in text
    assert made.memory is not None
    assert made.memory.saved.share == pytest.approx(1 - 180 / 108)
    assert made.saved is not None  # 18 ms for 8 samples, and 90 ms for 80
    assert made.saved.share == pytest.approx(1 - (0.09 / 80) / (0.018 / 8), abs=0.02)
    assert "It also saves 50" in text


def test_nothing_is_started_that_would_take_the_memory_of_other_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four ranks take 100 MiB and 1 MiB for each sample of a batch; 2400 MiB may be used."""
    ran = simulate(monkeypatch, free=3000 * MIB)
    made = search(Goal.MEMORY, tmp_path)
    assert [batch for batch, _ in ran][-7:] == [256, 384, 448, 8, 448, 448, 8]
    best = made.find_best()
    assert best is not None
    assert best.size.batch == 448
    assert "more memory than the machine has left" in render_sizes(made, unicode=True)


@pytest.mark.parametrize(("others", "best_batch"), [(0, 448), (100 * MIB, 256)])
def test_memory_of_gpus_is_predicted_apart_from_that_of_the_host(
    others: int, best_batch: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rank takes 100 MiB and 1 MiB for each sample. A GPU of its own may be filled; of what
    others leave, a fifth stays free."""
    ran = simulate(monkeypatch, free=1200 * MIB, others_on_gpu=others)
    made = search(Goal.MEMORY, tmp_path)
    assert max(batch for batch, _ in ran) == best_batch
    measured = [point for point in made.points if point.step is not None]
    assert [point.size.batch for point in measured] == [batch for batch, _ in ran[:-4]]
    assert [point.memory_bytes for point in measured] == [
        None,
        *((100 + batch) * MIB for batch, _ in ran[1:-4]),
    ]
    assert made.memory is not None
    assert made.memory.after.bytes == (100 + best_batch) * MIB
    best = made.find_best()
    assert best is not None
    assert best.size.batch == best_batch
    whose = "other jobs leave on its GPU" if others else "its GPU has"
    assert f"predicted to need more memory than {whose}" in render_sizes(made, unicode=True)


def test_the_number_of_ranks_at_the_same_global_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    ran = simulate(monkeypatch, fixed=0.0, per_sample=0.001, per_rank=0.004)
    made = search(Goal.TIME_PER_SAMPLE, tmp_path)
    assert ran[:4] == [(8, 4), (32, 1), (16, 2), (4, 8)]
    best = made.find_best()
    assert best is not None
    assert (best.size.batch, best.size.ranks) in ((8, 4), (16, 2))
    assert {point.samples for point in made.points} == {32}


def test_a_command_that_names_no_sizes() -> None:
    for command, goal, sentence in (
        (("python", "t.py"), Goal.MEMORY, "no batch size"),
        (("python", "t.py", "--bs", "8"), Goal.TIME_PER_SAMPLE, "no number of ranks"),
    ):
        with pytest.raises(UnknownSizeError, match=sentence):
            SizeSearch(command, goal, private=True).find_settings()
