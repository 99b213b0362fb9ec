"""A plan with something about it changed: what fixes are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mgpu_doctor.analysis.memory.settings import (
    Checkpointing,
    Optimizer,
    Plan,
    Precision,
    Settings,
    Strategy,
)

REPLICATED = {Strategy.DDP, Strategy.ZERO1}
ADAMS = {Optimizer.ADAM, Optimizer.ADAMW}

Variants = Callable[[Plan], tuple[Plan, ...]]
"""The plan with a fix, from mild to strong; none where it does not apply."""
Changed = Callable[[Settings], tuple[Settings, ...]]


def where(applies: Callable[[Plan], bool], change: Callable[[Plan], Plan]) -> Variants:
    def variants(plan: Plan) -> tuple[Plan, ...]:
        changed = change(plan)
        return (changed,) if applies(plan) and changed != plan else ()

    return variants


def traced(change: Changed) -> Variants:
    return lambda plan: tuple(replace(plan, settings=each) for each in change(plan.settings))


def checkpointing(wanted: Checkpointing) -> Changed:
    order = list(Checkpointing)

    def change(settings: Settings) -> tuple[Settings, ...]:
        stronger = order.index(wanted) > order.index(settings.checkpointing)
        return (replace(settings, checkpointing=wanted),) if stronger else ()

    return change


def bf16(settings: Settings) -> tuple[Settings, ...]:
    if settings.precision is Precision.BF16:
        return ()
    return (replace(settings, precision=Precision.BF16),)


def accumulate(settings: Settings) -> tuple[Settings, ...]:
    """Micro-batches of half the samples, a quarter, …, and as many more of them."""
    found = []
    parts = 2
    while parts <= settings.batch and settings.batch % parts == 0:
        batch, more = settings.batch // parts, settings.accumulate * parts
        found.append(replace(settings, batch=batch, accumulate=more))
        parts *= 2
    return tuple(found)


def smaller_batch(settings: Settings) -> tuple[Settings, ...]:
    found = []
    batch = settings.batch // 2
    while batch:
        found.append(replace(settings, batch=batch))
        batch //= 2
    return tuple(found)


def sgd(settings: Settings) -> tuple[Settings, ...]:
    if settings.optimizer is Optimizer.SGD:
        return ()
    return (replace(settings, optimizer=Optimizer.SGD),)


def strategy(wanted: Strategy, instead_of: set[Strategy]) -> Variants:
    def variants(plan: Plan) -> tuple[Plan, ...]:
        if plan.ranks < 2 or plan.strategy not in instead_of:
            return ()
        view = plan.bucket_view and wanted in REPLICATED
        return (replace(plan, strategy=wanted, bucket_view=view),)

    return variants


def adam(plan: Plan) -> bool:
    return plan.settings.optimizer in ADAMS and not plan.offload_optimizer
