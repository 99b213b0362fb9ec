"""Frameworks that call collectives for their users: which setting of the user's asks for it.

A line of an installed package is not the user's to mend. Where no setting is known that leads to
it, nothing can be advised.
"""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.case.own_code import own_code


@dataclass(frozen=True, slots=True)
class Setting:
    """What of the user's makes a framework synchronize the ranks."""

    framework: str
    why: str
    """The end of a sentence: the ranks meet `for …`."""
    how: str
    """What to set instead."""


SETTINGS = {
    "/lightning/fabric/utilities/distributed.py": (
        LIGHTNING := Setting(
            "Lightning",
            "a value that is logged in every step with sync_dist=True",
            'self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True) meets once an '
            "epoch; or self.log(..., sync_dist=False) in training_step, which logs rank 0's own.",
        )
    ),
    "/lightning_fabric/utilities/distributed.py": LIGHTNING,
    "/torchmetrics/utilities/distributed.py": Setting(
        "TorchMetrics",
        "a metric that is put together in every step",
        "Leave dist_sync_on_step=False, the default, and call metric.compute() every 50th step or "
        "at the end of an epoch: metric.update(...) adds up meanwhile without meeting anybody.",
    ),
    "/accelerate/utils/operations.py": Setting(
        "Accelerate",
        "accelerator.gather, gather_for_metrics or reduce, which the loop calls in every step",
        "if step % 50 == 0: around it; add values up in a tensor meanwhile. Leave it where "
        "training itself needs the result.",
    ),
    "/transformers/trainer_pt_utils.py": Setting(
        "transformers",
        "the mean of the loss, which is logged in every step",
        "TrainingArguments(logging_steps=50) instead of 1.",
    ),
}
"""By the end of the file in which the framework calls torch; read in the sources of Lightning
2.6, TorchMetrics 1.9, Accelerate 1.15 and transformers 4 and 5."""


def is_own(site: str) -> bool:
    """Whether `file:line` is a line of the user's own code."""
    return own_code(site.rpartition(":")[0] or site)


def setting(site: str) -> Setting | None:
    """What asks for the call at `file:line` of an installed package; None: not known."""
    file = site.rpartition(":")[0]
    return next((one for end, one in SETTINGS.items() if file.endswith(end)), None)
