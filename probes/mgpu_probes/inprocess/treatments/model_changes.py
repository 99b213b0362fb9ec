"""Treatments that change the model, its precision, and how its gradients are exchanged."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from .. import wrap
from .call_arguments import ALREADY_SET, NO_ARGUMENT, edit_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply, Arguments
    from .treatment_adapter import Change

NO_BUFFERS, NO_CONVOLUTION, HAS_HOOK = "no-buffers", "no-convolution", "has-hook"
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
_WARM_UP = 10
"""Steps before PowerSGD begins, as many as a trial does not measure."""


def _compile(change: Change, _: ProbeContext, distributed: ModuleType) -> None:
    """Compiles models in place before DistributedDataParallel wraps them: their class, their
    parameters and the names of these stay the same."""

    def edit(arguments: Arguments) -> str | None:
        module = arguments["module"]
        if not hasattr(module, "compile"):
            return NO_ARGUMENT
        if getattr(module, "_compiled_call_impl", None) is not None:
            return ALREADY_SET
        module.compile()
        return None

    edit_call(distributed.DistributedDataParallel, "__init__", change, edit)


def _use_channels_last(change: Change, _: ProbeContext, distributed: ModuleType) -> None:
    """Stores the weights of convolutions of two dimensions with the channels last, from which
    their outputs follow."""
    torch = sys.modules["torch"]

    def edit(arguments: Arguments) -> str | None:
        module = arguments["module"]
        if all(parameter.dim() != 4 for parameter in module.parameters()):
            return NO_CONVOLUTION
        module.to(memory_format=torch.channels_last)
        return None

    edit_call(distributed.DistributedDataParallel, "__init__", change, edit)


def _keep_buffers_local(change: Change, _: ProbeContext, distributed: ModuleType) -> None:
    """Leaves the buffers of each rank as they are."""

    def edit(arguments: Arguments) -> str | None:
        if not any(True for _ in arguments["module"].buffers()):
            return NO_BUFFERS
        if arguments.get("broadcast_buffers") is False:
            return ALREADY_SET
        arguments["broadcast_buffers"] = False
        return None

    edit_call(distributed.DistributedDataParallel, "__init__", change, edit)


def _register(make: Callable[[Any], tuple[Any, Any]]) -> Apply:
    """Registers a communication hook, unless the script has registered one before the first pass.
    `make`: the state and the hook for the treatment's value."""

    def apply(change: Change, _: ProbeContext, distributed: ModuleType) -> None:
        ddp = distributed.DistributedDataParallel
        original = ddp.forward
        known: set[int] = set()

        def register(module: Any) -> str | None:
            if getattr(module, "_comm_hooks", None):
                return HAS_HOOK
            module.register_comm_hook(*make(change.value))  # checks the backend and the device
            return None

        @functools.wraps(original)
        def forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
            if id(module) not in known and not wrap.compiling():
                known.add(id(module))
                if change.attempt(lambda: register(module)):
                    change.note(sys._getframe(1))
            return original(module, *inputs, **kwargs)

        ddp.forward = wrap.hidden(forward)

    return apply


def _default_hook(name: str) -> Callable[[Any], tuple[Any, Any]]:
    return lambda _: (None, getattr(importlib.import_module(f"{_HOOKS}.default_hooks"), name))


def _power_sgd(rank: Any) -> tuple[Any, Any]:
    module = importlib.import_module(f"{_HOOKS}.powerSGD_hook")
    state = module.PowerSGDState(
        process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=_WARM_UP
    )
    return state, module.powerSGD_hook


def _set_flag(change: Change, owner: Any, name: str, value: Any) -> None:
    if getattr(owner, name) == value:
        change.refuse(ALREADY_SET)
    else:
        setattr(owner, name, value)
        change.note()


def _use_tf32(change: Change, _: ProbeContext, torch: ModuleType) -> None:
    """Rounds to TF32 where the hardware can."""
    if torch.get_float32_matmul_precision() != "highest":
        change.refuse(ALREADY_SET)
        return
    torch.set_float32_matmul_precision("high")
    change.note()


def _time_algorithms(change: Change, _: ProbeContext, torch: ModuleType) -> None:
    """Lets cuDNN time its algorithms for each new size of inputs."""
    _set_flag(change, torch.backends.cudnn, "benchmark", True)


_DDP = "torch.nn.parallel.distributed"
APPLICATIONS: dict[str, dict[str, Apply]] = {
    "compile": {_DDP: _compile},
    "channels-last": {_DDP: _use_channels_last},
    "ddp-local-buffers": {_DDP: _keep_buffers_local},
    "ddp-compress-bf16": {_DDP: _register(_default_hook("bf16_compress_hook"))},
    "ddp-compress-fp16": {_DDP: _register(_default_hook("fp16_compress_hook"))},
    "ddp-power-sgd": {_DDP: _register(_power_sgd)},
    "tf32": {"torch": _use_tf32},
    "cudnn-benchmark": {"torch": _time_algorithms},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
