"""Findings of DeepSpeed jobs in DeepSpeed's words: what is to be set is in its configuration, which
takes the place of wrappers and calls of torch's."""

from __future__ import annotations

from dataclasses import replace

from mgpu_doctor.case.model import Job
from mgpu_doctor.findings import Finding, Fix
from mgpu_doctor.rules.advice import LARGER_BATCH

ENGINE = "deepspeed"
"""The word of its engine in a rank's strategy."""
HOW = {
    "accumulate": 'In the DeepSpeed configuration: "gradient_accumulation_steps": 4, and '
    '"train_batch_size", if it is there, four times as large; engine.backward(loss) and '
    "engine.step() stay in every batch, as the engine itself knows when to update. Gradients are "
    "exchanged once an update with ZeRO stages 0 and 1; stages 2 and 3 exchange them in every "
    f"batch.\n{LARGER_BATCH}",
    "bound-the-update": 'In the DeepSpeed configuration: "gradient_clipping": 1.0; a lower '
    'learning rate or a longer warm-up; "bf16": {"enabled": true} instead of "fp16".',
    "use-ddp": 'In the DeepSpeed configuration: "zero_optimization": {"overlap_comm": true}, on '
    "devices that have streams; it takes memory for a second set of buckets.",
    "autocast": 'In the DeepSpeed configuration: "bf16": {"enabled": true}.',
}
NEED_STREAMS = frozenset({"use-ddp"})


def spoken(finding: Finding, job: Job, *, on_cpu: bool) -> Finding:
    """The finding as a user of DeepSpeed would put it; `on_cpu`: no rank has a device."""
    if ENGINE not in (job.strategy or "").split("+"):
        return finding
    kept = [one for one in finding.fixes if not (on_cpu and one.id in NEED_STREAMS)]
    return replace(finding, fixes=tuple(map(_fix, kept)))


def _fix(fix: Fix) -> Fix:
    """What a formula predicts of torch's own way is not said of another."""
    if fix.id not in HOW:
        return fix
    return replace(fix, how=HOW[fix.id], predicted=None)
