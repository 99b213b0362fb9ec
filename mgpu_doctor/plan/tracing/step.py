"""Some training steps of a model, watched."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mgpu_doctor.analysis.memory.settings import Checkpointing, Optimizer, Precision, Settings
from mgpu_doctor.analysis.memory.stream import Kind, Phase, Stream
from mgpu_doctor.plan.tracing.blocks import recompute
from mgpu_doctor.plan.tracing.converting import replaced_when_converted
from mgpu_doctor.plan.tracing.likecuda import LikeCuda, gpus_pretended
from mgpu_doctor.plan.tracing.pointing import StepError, TargetError, described
from mgpu_doctor.plan.tracing.target import Trained, read, tensors
from mgpu_doctor.plan.tracing.watcher import UnfollowableError, Watcher
from mgpu_doctor.plan.wire import Answer

STEPS = 2
"""The first makes the optimizer's states, the second finds them there."""

_EVERY = {Checkpointing.FULL: 1, Checkpointing.HALF: 2}


@dataclass(frozen=True, slots=True)
class Traced:
    """`flops`: of a step, matrix products and convolutions alone; `values_read`: numbers that the
    step asked tensors for and that were made up; `notes`: what the stream does not hold."""

    stream: Stream
    flops: int
    values_read: int
    notes: tuple[str, ...] = ()


def load() -> None:
    """What is loaded with the first trace, torch._dynamo above all."""
    FakeTensorMode()


def answer(function: Callable[[], Any], settings: Settings, *, real: bool) -> Answer:
    """As `trace`, to be sent."""
    traced = trace(function, settings, real=real)
    return Answer(traced.stream, traced.flops, traced.values_read, notes=traced.notes)


def trace(function: Callable[[], Any], settings: Settings, *, real: bool) -> Traced:
    """The step that `function` describes; `real`: computed in earnest, on the CPU.

    Raises TargetError where it describes none, StepError where it fails.
    """
    watcher = Watcher(fake=not real)
    fake = nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True)
    parameters = None
    try:
        with fake, _no_garbage_collected(), gpus_pretended():
            with LikeCuda(), nullcontext() if real else replaced_when_converted():
                trained = read(function())
            parameters = sum(each.numel() for each in trained.model.parameters())
            _prepare(trained.model, settings)
            optimizer = _optimizer(trained.model, settings.optimizer)
            for tensor in (*trained.model.parameters(), *trained.model.buffers()):
                watcher.know(tensor, Kind.WEIGHTS)
            with watcher:
                _steps(trained, optimizer, watcher, settings)
            stream = watcher.stream(settings.batch, parameters)
    except TargetError:
        raise
    except UnfollowableError as error:
        raise StepError(str(error), parameters) from None
    except Exception as error:
        raise StepError(described(error), parameters) from error
    return Traced(stream, watcher.flops, watcher.values_read, watcher.notes)


def _steps(
    trained: Trained, optimizer: torch.optim.Optimizer, watcher: Watcher, settings: Settings
) -> None:
    batch = None
    for _ in range(STEPS):
        watcher.step()
        for _ in range(settings.accumulate):
            with LikeCuda():
                batch = _next(trained, watcher, settings.batch)
                watcher.forward()
                with _precision(settings.precision):
                    loss = trained.loss(trained.model, batch)
                _check(loss)
                if settings.accumulate > 1:
                    loss = loss / settings.accumulate
                watcher.backward()
                _backward(loss)
            for parameter in trained.model.parameters():
                if parameter.grad is not None:
                    watcher.know(parameter.grad, Kind.GRADIENTS)
        watcher.phase = Phase.OPTIMIZER
        optimizer.step()
        for state in optimizer.state.values():
            for name, tensor in state.items():
                if name == "step" and isinstance(tensor, torch.Tensor):
                    watcher.stays_on_host(tensor)
                elif isinstance(tensor, torch.Tensor):
                    watcher.know(tensor, Kind.OPTIMIZER)
        optimizer.zero_grad()


def _backward(loss: torch.Tensor) -> None:
    """As `loss.backward()`, which would run with `LikeCuda` switched off."""
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (loss,),
        (torch.ones_like(loss),),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def _next(trained: Trained, watcher: Watcher, samples: int) -> Any:
    """A batch as it comes from the host: what making it took is not on the device."""
    watcher.phase = Phase.FORWARD
    with watcher.paused():
        batch = trained.batch(samples)
    found = list(tensors(batch))
    if not found:
        raise TargetError("the batch holds no tensors: let it be one, or a tuple or dict of some.")
    for tensor in found:
        watcher.know(tensor, Kind.BATCH)
    return batch


def _check(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        known = isinstance(loss, torch.Tensor)
        what = f"one of shape {tuple(loss.shape)}" if known else type(loss).__name__
        raise TargetError(f"the loss must be a tensor of one number, not {what}.")
    if not loss.requires_grad:
        raise TargetError("the loss depends on no parameter of the model that is trained.")


def _prepare(model: nn.Module, settings: Settings) -> None:
    if not any(each.requires_grad for each in model.parameters()):
        raise TargetError("the model has no parameters to train.")
    if settings.checkpointing in _EVERY and not recompute(model, _EVERY[settings.checkpointing]):
        raise TargetError(
            "nothing in the model is repeated (a ModuleList or Sequential of equal blocks), so "
            "--checkpointing cannot tell what to compute again: build it into the model."
        )


def _optimizer(model: nn.Module, which: Optimizer) -> torch.optim.Optimizer:
    """With its lists of tensors in one go, as torch does on GPUs."""
    trained = [each for each in model.parameters() if each.requires_grad]
    if which is Optimizer.SGD:
        return torch.optim.SGD(trained, lr=1e-3, foreach=True)
    kind = torch.optim.Adam if which is Optimizer.ADAM else torch.optim.AdamW
    return kind(trained, lr=1e-3, foreach=True)


def _precision(precision: Precision) -> AbstractContextManager[Any]:
    if precision is Precision.BF16:
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """What only the garbage collector frees, it frees at a moment that nobody can foresee."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
