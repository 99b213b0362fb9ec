"""Computing in float32 where the device has faster units for shorter types."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_probes.inprocess.layout import BACKWARD, FORWARD

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.phase_shares import phase_shares
from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.rank_device import Accelerator, accelerator
from mgpu_doctor.findings import Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.rule import Limits, Rule

BFLOAT16 = (8, 0)
FLOAT16 = (7, 0)
"""Compute capability from which there are tensor cores for the type, and TF32 with bfloat16 (CUDA
C++ Programming Guide, compute capabilities)."""
RATIOS = {(7, 0): 8, (7, 5): 8, (8, 0): 16, (9, 0): 17}
"""Peak rate of the half types on tensor cores against float32 without them: 125 / 15.7 TFLOPS
(V100), 65 / 8.1 (T4), 312 / 19.5 (A100) from NVIDIA's data sheets, 1000 / 60 (H100) from its
"Hopper Architecture In-Depth". Other devices are unknown."""
JUDGED = ("ddp", "zero1", "localsgd", "dp", "mp", "single")
"""Strategies that surely compute in the parameters' type. Others (FSDP, DeepSpeed) keep float32
copies and compute in a shorter type without autocast."""


def _full(measures: Measures, _: Limits) -> Iterable[Finding]:
    gpus = [accelerator(rank) for rank in measures.case.ranks]
    known = [gpu for gpu in gpus if gpu is not None]
    strategies = {rank.metadata.strategy for rank in measures.case.ranks}
    if not known or len(known) < len(gpus) or not strategies <= set(JUDGED):
        return
    if not all(_is_full(accelerator) for accelerator in known):
        return
    capability = min(
        accelerator.capability for accelerator in known if accelerator.capability is not None
    )
    dtype = "bfloat16" if capability >= BFLOAT16 else "float16"
    device = next((accelerator.name for accelerator in known if accelerator.name), "the device")
    gain = _gain(measures, capability)
    fixes = [Fix("autocast", f"Compute in {dtype}", advice.autocast(measures, dtype), gain)]
    if capability >= BFLOAT16:
        fixes.append(
            Fix(
                "tf32",
                "Or allow TF32, which rounds inputs of matrix products to 10 bits of mantissa",
                'torch.set_float32_matmul_precision("high"), at the start of the program',
                Predicted(None, None, "less than with bfloat16: half its peak rate (vendor)"),
            )
        )
    yield Finding(
        code="precision-full",
        severity=Severity.INFO,
        confidence=0.7,
        title=f"Matrix products run in float32 on {device}, which has tensor cores for {dtype}",
        cause="The parameters are float32, no autocast was entered"
        + (", and TF32 is off for matrix products." if capability >= BFLOAT16 else ".")
        + _convolutions(known),
        victims=tuple(rank.rank for rank in measures.case.ranks if rank.rank is not None),
        evidence=(
            Evidence("precision", "float32", "dtype", dtype, "process metadata"),
            Evidence(
                "compute capability",
                "{}.{}".format(*capability),
                "version",
                "{}.{}".format(*(BFLOAT16 if capability >= BFLOAT16 else FLOAT16)),
                "process metadata",
            ),
        ),
        since_step=0,
        fixes=tuple(fixes),
    )


def _is_full(gpu: Accelerator) -> bool:
    """Whether the device surely has a faster type that is not used."""
    if gpu.capability is None or gpu.precision != "float32" or gpu.capability < FLOAT16:
        return False
    return gpu.capability < BFLOAT16 or gpu.tf32 is False


def _convolutions(gpus: Iterable[Accelerator]) -> str:
    used = all(gpu.tf32_convolutions for gpu in gpus)
    return " Convolutions use TF32 already, so a model of convolutions gains less." if used else ""


def _gain(measures: Measures, capability: tuple[int, int]) -> Predicted:
    ratio = RATIOS.get(capability)
    if ratio is None:
        return Predicted(None, None, "not predicted: the device's peak rates are unknown")
    bound = (
        f"upper bound: the vendor's peak rates differ {ratio} times for matrix products, which are "
        "only a part of forward and backward; nothing else becomes faster"
    )
    ranks = [on_one_clock(rank) for rank in measures.case.ranks]
    shares = [phase_shares(ranks, phase) for phase in (FORWARD, BACKWARD)]
    if not all(shares):
        return Predicted(
            None, None, f"{bound}; their share of the step on the device was not measured"
        )
    compute = sum(max(share.values()) for share in shares if share)
    return Predicted(1 - compute * (1 - 1 / ratio), None, bound)


RULES = (
    Rule(
        code="precision-full",
        family="slow",
        summary="Matrix products run in float32 on GPUs that have much faster units for shorter "
        "types.",
        measured="The optimizers' parameters are float32, no autocast was entered, torch's setting "
        "for TF32 in matrix products is off, and the device's compute capability is 8.0 or more "
        "(bfloat16, TF32) or 7.0 or more (float16). The types of single kernels are not measured, "
        "so strategies that keep float32 copies beside what they compute in (FSDP, DeepSpeed) are "
        "not judged.",
        thresholds="The gain is an upper bound: the ratio of the vendor's peak rates (NVIDIA, of "
        "V100, T4, A100 and H100), for the share of forward and backward alone, and only if the "
        "device's own clock measured that.",
        fixes="Autocast to bfloat16 (float16 with a gradient scaler before capability 8.0), or "
        '`torch.set_float32_matmul_precision("high")`. Watch the loss.',
        examine=_full,
        needs=("step_seconds",),
        unverified=PRETEND,
    ),
)
