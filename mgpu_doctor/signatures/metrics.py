"""What the numbers that training itself prints give away."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="loss-printed-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="nan",
        pattern=r"(?i:loss)['\"]?\s{0,6}[:=|]?\s{0,6}(?:tensor\()?-?nan\b(?! is not)",
        meaning="The loss that is printed is not a number, again and again: the weights are lost, "
        "and going on changes nothing.",
        fix="Go back to a checkpoint from before the first one. A smaller learning rate, clipped "
        "gradients and bf16 instead of fp16 are the usual remedies; "
        "`torch.autograd.set_detect_anomaly(True)` finds the operation.",
        example="{'loss': nan, 'grad_norm': nan, 'learning_rate': 4.5e-05, 'epoch': 0.2}",
        origin="made: SGD with a learning rate of 1e30, metrics printed as a dict, torch 2.13",
        severity="warning",
        least=10,
        weight=0.85,
    ),
)
