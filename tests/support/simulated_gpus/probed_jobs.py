"""Simulated jobs under the probe: what it recorded, beside what the devices really did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.device_clock import DeviceStep, DeviceTimer
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_fast_path import StepFastPath
from mgpu_probes.inprocess.step_marks import Data, Mark, batch_copied
from mgpu_probes.inprocess.step_segments import Step

from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.simulated_gpus.training_scripts import Job, script
from tests.support.simulated_gpus.virtual_gpus import Gpu, Machine, Truth
from tests.support.synthetic import make_case, make_rank

ON_DEVICE_ALONE = (Steps.backward_waits, batch_copied)
"""Marks that say nothing on the host."""


class ProbedRank:
    """A simulated rank with the probe's step engine and timer."""

    def __init__(
        self,
        gpu: Gpu,
        host_clock: Callable[[], int] | None = None,
        *,
        has_optimizer: bool = True,
    ) -> None:
        self.gpu = gpu
        gpu.mark = self.mark
        self.host_steps: list[Step] = []
        self.device_steps: list[DeviceStep] = []
        self.engine = StepFastPath(Ledger(gpu.clock()), self._reported, self._facts)
        self.engine.engine().optimizers_exist = has_optimizer
        self.timer = DeviceTimer(
            gpu,
            self.engine,
            self.device_steps.append,
            {Steps.backward_begins},
            opens_turn={Steps.update_begins},
            host_clock=host_clock or gpu.clock,
        )

    def _facts(self) -> tuple[int, int, int, int]:
        return (self.gpu.collectives, 0, 0, 0)

    def mark(self, mark: Mark, data: Data) -> None:
        """As the probe's context: the timer first, then the engine."""
        now = self.gpu.clock()
        self.timer.mark(mark, data, now)
        if mark not in ON_DEVICE_ALONE:
            self.engine.mark(mark, now, data)

    def _reported(self, step: Step) -> None:
        self.host_steps.append(step)
        record = len(self.host_steps)
        key = step.after[0] if step.after[0] != step.before[0] else record
        self.timer.turn_ended(record, step.end - step.start, key, step.end)

    def compared(self) -> list[tuple[DeviceStep, Truth]]:
        """The timed turns beside what the device really did."""
        truths = {truth.began: truth for truth in self.gpu.truth}
        return [
            (step, truths[self.host_steps[step.record - 1].start]) for step in self.device_steps
        ]

    def records(self) -> Any:
        """Step records of the timed turns, with the device's times."""
        steps = sorted(self.device_steps)
        records = np.zeros(len(steps), dtype=STEP_DTYPE)
        for record, step in zip(records, steps, strict=True):
            host = self.host_steps[step.record - 1]
            record["seq"], record["step"] = step.record, step.record - 1
            record["end_ns"], record["wall_ns"] = host.end, step.wall
            record["phases"] = [phase * 1e-9 for phase in step.phases]
            record["group_seq"], record["collectives"] = host.after[0], host.collectives
            record["micro_batches"] = host.backwards
        records["phases"][:, layout.COMMUNICATION] = np.nan
        records["loss"] = records["cpu_s"] = np.nan
        records["stage"] = -1
        return records


def train(job: Job, *changes: dict[str, int], **of_all: int) -> list[ProbedRank]:
    """Runs a job; `changes` are settings of each rank's GPU, `of_all` those of all."""
    each = [
        {**of_all, **(changes[rank] if rank < len(changes) else {})} for rank in range(job.ranks)
    ]
    machine = Machine(job.ranks, each)
    has_optimizer = job.strategy != "by_hand"
    ranks = [ProbedRank(gpu, has_optimizer=has_optimizer) for gpu in machine.gpus]
    machine.run([script(job, rank) for rank in range(job.ranks)])
    for rank in ranks:
        rank.timer.finish()
    return ranks


def case_of(job: Job, ranks: Sequence[ProbedRank]) -> Case:
    """The job as it would be loaded from its recording."""
    strategy = {"fsdp": "fsdp", "tensor": "tensor", "pipeline": "pipeline", "local_sgd": "localsgd"}
    facts: dict[str, Any] = {"clock": "device", "framework": "torch"}
    made = []
    for number, rank in enumerate(ranks):
        if job.strategy == "pipeline":
            facts = {**facts, "pipeline": {"stages": job.ranks, "held": [number]}}
        made.append(
            make_rank(
                number,
                rank.records(),
                birth={**facts, "device": f"cuda:{number}"},
                device=f"cuda:{number}",
            )
        )
    return make_case(made, strategy=strategy.get(job.strategy, "ddp"))


def accused(case: Case) -> dict[int, set[str]]:
    """Rank -> codes of the findings that name it as the culprit. Checkpoints do take long here."""
    ranks: dict[int, set[str]] = {}
    for finding in diagnose(case).findings:
        if finding.severity is not Severity.INFO and finding.code != "checkpoint-stall":
            for culprit in finding.culprits:
                if culprit.rank is not None:
                    ranks.setdefault(culprit.rank, set()).add(finding.code)
    return ranks
