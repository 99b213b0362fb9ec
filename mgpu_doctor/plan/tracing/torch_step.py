"""A few training steps of a PyTorch model, watched: with fake tensors, or run on the CPU.

Also reads what the user's function returned, and sets up activation checkpointing of the blocks a
model repeats.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from mgpu_doctor.analysis.memory.memory_plan import Checkpointing, Optimizer, Precision, Settings
from mgpu_doctor.analysis.memory.stream import Kind, Phase, Stream
from mgpu_doctor.plan.tracing.fake_devices import (
    LikeCuda,
    gpus_pretended,
    weights_replaced_on_conversion,
)
from mgpu_doctor.plan.tracing.storage_watcher import StorageWatcher, UnfollowableError
from mgpu_doctor.plan.tracing.user_function import APART, StepError, TargetError, describe_error
from mgpu_doctor.plan.tracing_protocol import Answer

STEPS = 2
"""Number of steps: the first makes the optimizer's states, the second reuses them."""

_EVERY = {Checkpointing.FULL: 1, Checkpointing.HALF: 2}


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced step. `flops`: of its matrix products and convolutions. `values_read`: numbers that
    the step read from tensors, which were invented. `notes`: what the stream does not include."""

    stream: Stream
    flops: int
    values_read: int
    notes: tuple[str, ...] = ()


def load() -> None:
    """Imports what the first trace needs, mainly torch._dynamo."""
    FakeTensorMode()


def answer(function: Callable[[], Any], settings: Settings, *, real: bool) -> Answer:
    """Returns the result of `trace` as a message."""
    traced = trace(function, settings, real=real)
    return Answer(traced.stream, traced.flops, traced.values_read, notes=traced.notes)


def trace(function: Callable[[], Any], settings: Settings, *, real: bool) -> Traced:
    """Returns the traced step that `function` describes. `real`: really computed, on the CPU.

    Raises TargetError if it describes no step, StepError if the step fails.
    """
    watcher = StorageWatcher(fake=not real)
    fake = nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True)
    parameters = None
    try:
        with fake, _garbage_collection_off(), gpus_pretended():
            with LikeCuda(), nullcontext() if real else weights_replaced_on_conversion():
                trained = read_target(function())
            parameters = sum(each.numel() for each in trained.model.parameters())
            _prepare(trained.model, settings)
            optimizer = _make_optimizer(trained.model, settings.optimizer)
            for tensor in (*trained.model.parameters(), *trained.model.buffers()):
                watcher.label(tensor, Kind.WEIGHTS)
            with watcher:
                _steps(trained, optimizer, watcher, settings)
            stream = watcher.stream(settings.batch, parameters)
    except TargetError:
        raise
    except UnfollowableError as error:
        raise StepError(str(error), parameters) from None
    except Exception as error:
        raise StepError(describe_error(error), parameters) from error
    return Traced(stream, watcher.flops, watcher.values_read, watcher.notes)


def _steps(
    trained: Trained, optimizer: torch.optim.Optimizer, watcher: StorageWatcher, settings: Settings
) -> None:
    batch = None
    for _ in range(STEPS):
        watcher.step()
        for _ in range(settings.accumulate):
            with LikeCuda():
                batch = _next_batch(trained, watcher, settings.batch)
                watcher.forward()
                with _autocast(settings.precision):
                    loss = trained.loss(trained.model, batch)
                _check_loss(loss)
                if settings.accumulate > 1:
                    loss = loss / settings.accumulate
                watcher.backward()
                _backward(loss)
            for parameter in trained.model.parameters():
                if parameter.grad is not None:
                    watcher.label(parameter.grad, Kind.GRADIENTS)
        watcher.phase = Phase.OPTIMIZER
        optimizer.step()
        for state in optimizer.state.values():
            for name, tensor in state.items():
                if name == "step" and isinstance(tensor, torch.Tensor):
                    watcher.stays_on_host(tensor)
                elif isinstance(tensor, torch.Tensor):
                    watcher.label(tensor, Kind.OPTIMIZER)
        optimizer.zero_grad()


def _backward(loss: torch.Tensor) -> None:
    """Runs backward. `loss.backward()` would run with `LikeCuda` switched off."""
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


def _next_batch(trained: Trained, watcher: StorageWatcher, samples: int) -> Any:
    """Returns a batch as it comes from the host: memory used for making it is not on the device."""
    watcher.phase = Phase.FORWARD
    with watcher.paused():
        batch = trained.batch(samples)
    tensors = list(find_tensors(batch))
    if not tensors:
        raise TargetError(
            "the batch contains no tensors: make it a tensor, or a tuple or dict of tensors."
        )
    for tensor in tensors:
        watcher.label(tensor, Kind.BATCH)
    return batch


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        known = isinstance(loss, torch.Tensor)
        what = f"one of shape {tuple(loss.shape)}" if known else type(loss).__name__
        raise TargetError(f"the loss must be a tensor of one number, not {what}.")
    if not loss.requires_grad:
        raise TargetError("the loss does not depend on a trained parameter of the model.")


def _prepare(model: nn.Module, settings: Settings) -> None:
    if not any(each.requires_grad for each in model.parameters()):
        raise TargetError("the model has no parameters to train.")
    if settings.checkpointing in _EVERY and not recompute_blocks(
        model, _EVERY[settings.checkpointing]
    ):
        raise TargetError(
            "nothing in the model is repeated (a ModuleList or Sequential of equal blocks), so "
            "--checkpointing does not know what to recompute: build it into the model."
        )


def _make_optimizer(model: nn.Module, which: Optimizer) -> torch.optim.Optimizer:
    """Returns the optimizer, which updates lists of tensors at once (foreach), as torch does on
    GPUs."""
    trained = [each for each in model.parameters() if each.requires_grad]
    if which is Optimizer.SGD:
        return torch.optim.SGD(trained, lr=1e-3, foreach=True)
    kind = torch.optim.Adam if which is Optimizer.ADAM else torch.optim.AdamW
    return kind(trained, lr=1e-3, foreach=True)


def _autocast(precision: Precision) -> AbstractContextManager[Any]:
    if precision is Precision.BF16:
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """Disables the garbage collector, which frees memory at unpredictable moments."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


PROTOCOL = (
    "return (model, batch) or (model, batch, loss): a module, a function of the number of samples "
    "that makes a batch, and a function of model and batch that gives the loss (docs/plan.md)"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """The parts of a step. `batch`: makes a batch of this many samples. `loss`: a scalar."""

    model: nn.Module
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]


def refuse_groups() -> None:
    """Makes process groups fail: the plan is for a single rank."""
    torch.distributed.init_process_group = _refuse_group


def read_target(returned: Any) -> Trained:
    """Returns what the function returned, checked. Raises TargetError if it is something else."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    if type(parts[0]).__module__.partition(".")[0] in ("keras", "tensorflow"):
        raise TargetError(
            "the function returned a model of Keras, but its file does not import keras or "
            "tensorflow, or torch as well: name one that imports it and not torch."
        )
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module):
        what = ", ".join(type(part).__name__ for part in parts)
        raise TargetError(f"the function returned ({what}); let it {PROTOCOL}.")
    if not all(callable(part) for part in parts[1:]):
        raise TargetError(f"batch and loss must be functions; let it {PROTOCOL}.")
    return Trained(parts[0], parts[1], parts[2] if len(parts) == 3 else _model_loss)


def find_tensors(batch: Any) -> Iterable[torch.Tensor]:
    """Returns all tensors inside a batch, however it is nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        yield from (tensor for each in batch.values() for tensor in find_tensors(each))
    elif isinstance(batch, (tuple, list)):
        yield from (tensor for each in batch for tensor in find_tensors(each))


def _model_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Returns the loss of a model that computes it itself."""
    if isinstance(batch, dict):
        made = model(**batch)
    else:
        made = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    loss = made.get("loss") if isinstance(made, dict) else getattr(made, "loss", made)
    if isinstance(loss, torch.Tensor) and loss.ndim == 0:
        return loss
    raise TargetError(f"the model returns no loss itself; let the function {PROTOCOL}.")


def _refuse_group(*_: Any, **__: Any) -> None:
    raise TargetError(f"your code starts a process group, which no plan can join: {APART}.")


_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def recompute_blocks(model: nn.Module, every: int) -> bool:
    """Checkpoints every n-th repeated block: it keeps only its inputs and recomputes the rest in
    backward. Returns False if the model has no repeated blocks."""
    modules = list(find_repeated_blocks(model))
    for block in modules[::every]:
        again = partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = again
    return bool(modules)


def find_repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Returns the members of containers with several modules of one kind, each of several layers.

    Takes the outermost such containers, or their members if these are such containers (a ResNet's
    stages).
    """
    members = list(module.children())
    alike = len(members) > 1 and len({type(member) for member in members}) == 1
    if isinstance(module, _CONTAINERS) and alike and all(map(_has_children, members)):
        for member in members:
            inner = list(find_repeated_blocks(member)) if isinstance(member, _CONTAINERS) else []
            yield from inner or [member]
    else:
        for member in members:
            yield from find_repeated_blocks(member)


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None
