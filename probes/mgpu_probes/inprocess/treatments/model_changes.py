"""Treatments that change the model, its precision, and how its gradients are exchanged."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from .. import wrap
from .call_arguments import ALREADY_SET, edit_call
from .rank_models import change_models

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


def _compile(_: Change, model: Any) -> str | None:
    """Compiles the model in place: its class, its parameters and the names of these stay the
    same."""
    if any(map(_is_compiled, model.modules())):
        return ALREADY_SET
    model.compile()
    return None


def _is_compiled(module: Any) -> bool:
    """Whether it was compiled in place, or is what torch.compile returns."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


def _use_channels_last(_: Change, model: Any) -> str | None:
    """Stores the weights of convolutions of two dimensions with the channels last, from which
    their outputs follow."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 4]
    for weight in weights:
        weight.data = weight.data.to(memory_format=sys.modules["torch"].channels_last)
    return None if weights else NO_CONVOLUTION


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
    "compile": change_models(_compile),
    "channels-last": change_models(_use_channels_last),
    "ddp-local-buffers": {_DDP: _keep_buffers_local},
    "ddp-compress-bf16": {_DDP: _register(_default_hook("bf16_compress_hook"))},
    "ddp-compress-fp16": {_DDP: _register(_default_hook("fp16_compress_hook"))},
    "ddp-power-sgd": {_DDP: _register(_power_sgd)},
    "tf32": {"torch": _use_tf32},
    "cudnn-benchmark": {"torch": _time_algorithms},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
