"""How the ranks of a job share the work, in the field's words."""

from __future__ import annotations

from mgpu_doctor.case import birth
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text

NAMES = {
    "ddp": "DDP",
    "fsdp": "FSDP",
    "dp": "DataParallel",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "deepspeed": "DeepSpeed",
    "localsgd": "local SGD",
    "mp": "model parallel",
    "tensor": "tensor parallel",
    "ps": "parameter server",
    "manual": "own collectives",
    "single": "one process",
}
"""By the words of a birth certificate; others are shown as they are."""
OF_PIPELINES = ("pipeline", "manual")
"""Words that say nothing more where the stages are known."""
LONGEST = 40


def strategy(diagnosis: Diagnosis) -> str:
    """`DDP`, `FSDP × tensor parallel`, `pipeline 4 × DDP 2`; empty where it is not known."""
    told = (diagnosis.case.job.strategy or "").split("+")
    stages = diagnosis.stages
    words = [word for word in told if word and not (stages and word in OF_PIPELINES)]
    names = [text.cut(text.line(NAMES.get(word, word)), LONGEST) for word in words]
    if stages:
        pipelines = len(stages[0])
        names = [f"pipeline {len(stages)}", *([] if pipelines == 1 else names or ["data"])]
        return " × ".join(names) + (f" {pipelines}" if pipelines > 1 else "")
    devices = birth.data_parallel_devices(next(iter(diagnosis.case.ranks), None))
    over = f" over {text.count(devices, 'device')}" if devices else ""
    return " × ".join(names) + over
