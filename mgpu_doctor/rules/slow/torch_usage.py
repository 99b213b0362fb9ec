"""Costly uses of PyTorch: recompiling during training, and DataParallel."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stalls.recompilation import Recompilation, find_recompilation
from mgpu_doctor.findings import Cost, Culprit, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.rule import Limit, Limits, Rule

RECOMPILE_LIMIT = 8
"""Versions of one function that torch keeps by default (`torch._dynamo.config.recompile_limit`)."""
USUAL = 0.5
"""Share of the steps from which recompiling explains slow ranks."""


def _recompiling(measures: Measures, limits: Limits) -> Iterable[Finding]:
    recompilation = find_recompilation(measures.case.ranks, int(limits["warm_up"]))
    if (
        recompilation is None
        or recompilation.steps <= limits["steps"]
        or recompilation.saved < limits["cost"]
    ):
        return
    everybody = {rank.rank for rank in measures.case.ranks if rank.rank is not None}
    step = measures.step_seconds
    what, _, reason = recompilation.what.partition(": ")
    saved = Predicted(
        1 - recompilation.saved,
        None,
        "measured what-if: the same time without compiling; an upper bound, as code for changing "
        "shapes is a little slower",
    )
    yield Finding(
        code="recompiling",
        severity=severity_of_cost(recompilation.saved),
        confidence=0.95,
        title=f"torch.compile recompiles in {recompilation.steps} of {recompilation.compared} "
        f"steps, {format_seconds(recompilation.seconds)} each time",
        cause=_cause(recompilation, what, reason, everybody),
        culprits=tuple(culprit_of(measures, number) for number in recompilation.ranks),
        victims=tuple(sorted(everybody - set(recompilation.ranks))),
        evidence=(
            Evidence(
                "steps after warm-up in which something was compiled",
                recompilation.steps,
                "steps",
                limits["steps"],
                "compilation events of every rank",
                what or None,
            ),
            Evidence(
                "share of the time after warm-up in which a rank compiled",
                recompilation.saved,
                "fraction",
                limits["cost"],
                "compilation events of every rank",
            ),
        ),
        since_step=recompilation.first,
        cost=Cost(recompilation.saved, None if step is None else recompilation.saved * step),
        fixes=(
            Fix(
                "dynamic-shapes",
                "Compile once for all sizes, or use few sizes",
                "Use `torch.compile(model, dynamic=True)`. Or call `torch._dynamo.mark_dynamic(x, "
                "0)` before the model if dimension 0 of tensor x changes. Or keep sizes fixed: pad "
                "to a few lengths, and use "
                f"{advice.in_loader('drop_last=True')} for the last batch.",
                saved,
            ),
            Fix(
                "see-why",
                "Let torch report what changes",
                f"{advice.environment(measures, TORCH_LOGS='recompiles')} prints the function and "
                "the failed guard each time. Put numbers that change in every step into a tensor.",
            ),
        ),
        replaces=("straggler-compute",)
        if recompilation.steps >= USUAL * recompilation.compared
        else (),
    )


def _cause(recompilation: Recompilation, what: str, reason: str, everybody: set[int]) -> str:
    text = "Inputs that the compiled code was not made for make torch compile again"
    if what:
        text = f"{what} is recompiled"
    text += f", because of {reason}." if reason else "."
    if everybody - set(recompilation.ranks):
        text += f" This happens on {format_ranks(recompilation.ranks)}; the other ranks wait."
    elif len(everybody) > 1:
        text += " This happens on every rank, and the ranks that are not compiling wait."
    if recompilation.versions is not None and recompilation.versions >= RECOMPILE_LIMIT:
        text += (
            f" After {RECOMPILE_LIMIT} versions of a function (by default, see "
            "torch._dynamo.config.recompile_limit), torch gives up and runs it uncompiled."
        )
    return text


def _outdated(measures: Measures, _: Limits) -> Iterable[Finding]:
    driven = {
        rank.rank: devices
        for rank in measures.case.ranks
        if (devices := rank.metadata.data_parallel_devices) is not None
    }
    if not driven:
        return
    devices = max(driven.values())
    spreads = devices >= 2
    yield Finding(
        code="strategy-outdated",
        severity=Severity.WARNING if spreads else Severity.INFO,
        confidence=0.95,
        title=f"DataParallel drives {devices} GPUs from one process"
        if spreads
        else f"DataParallel is of no use with {'one GPU' if devices == 1 else 'no GPU'}",
        cause="One Python process serves all devices: it copies the model to each of them in every "
        "step, gathers their outputs on the first one, and its threads share one interpreter lock."
        if spreads
        else "It calls the model directly, as if it were not wrapped.",
        culprits=tuple(_culprit(measures, number) for number in driven),
        evidence=(
            Evidence(
                "devices that nn.DataParallel drives", devices, "devices", 1, "process metadata"
            ),
        ),
        since_step=0,
        fixes=(
            Fix(
                "use-ddp",
                "Use DistributedDataParallel, with one process per device",
                f"{advice.under_torchrun(measures, max(devices, 2))}; in the script: "
                "torch.distributed.init_process_group(); device = int(os.environ['LOCAL_RANK']); "
                "model = DistributedDataParallel(model.to(device), device_ids=[device]); and "
                f"{advice.in_loader('sampler=DistributedSampler(dataset)')}"
                + ("" if spreads else "; on one device: drop the wrapper."),
            ),
        ),
    )


def _culprit(measures: Measures, number: int | None) -> Culprit:
    return culprit_of(measures, number) if number is not None else Culprit(None)


RULES: tuple[Rule, ...] = (
    Rule(
        code="recompiling",
        family="slow",
        summary="torch.compile keeps recompiling during training.",
        measured="torch notifies the probe when a compilation begins and ends "
        "(`torch._dynamo.callback`). The cost is the time in which any rank compiled, as the other "
        "ranks wait for it.",
        thresholds="Compilations during warm-up do not count. A few later ones are normal: a "
        "validation pass and a smaller last batch are compiled once each.",
        fixes="Use few sizes, or code for all of them (`dynamic=True`, `mark_dynamic`). "
        "`TORCH_LOGS=recompiles` shows what changes.",
        examine=_recompiling,
        alternatives=(log_detector("recompiling"),),
        replaces=("straggler-transient",),
        limits=(
            Limit(
                "warm_up",
                10,
                "steps",
                "number of first steps, in which compiling is part of the start.",
            ),
            Limit(
                "steps",
                3,
                "steps",
                "how many steps with a compilation after warm-up are normal: a first validation, "
                "its last batch, the last batch of an epoch.",
            ),
            Limit(
                "cost",
                0.01,
                "fraction",
                "minimum share of the time after warm-up spent compiling; warning from 5 %.",
            ),
        ),
        unverified="on a GPU, where compiling takes longer",
    ),
    Rule(
        code="strategy-outdated",
        family="slow",
        summary="nn.DataParallel is used instead of DistributedDataParallel.",
        measured="The probe sees the module when it is created, with its devices.",
        thresholds="Warning if it drives two GPUs or more, otherwise info. torch's documentation "
        "recommends DistributedDataParallel even on one node (torch.nn.DataParallel). The cost is "
        "not measured.",
        fixes="Use DistributedDataParallel with one process per GPU.",
        examine=_outdated,
        unverified="two GPUs or more",
    ),
)
