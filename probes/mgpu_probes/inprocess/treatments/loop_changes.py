"""Treatments that change what happens in the training loop: garbage collection, precision, and
when gradients are exchanged."""

from __future__ import annotations

import functools
import gc
import sys
from typing import TYPE_CHECKING, Any

from .. import wrap
from .call_arguments import NO_ARGUMENT
from .rank_models import change_calls

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .treatment_adapter import Change

    Apply = Callable[[Change, ProbeContext, ModuleType], None]

SEVERAL_MODULES = "several-modules"


def _freeze_garbage(change: Change, context: ProbeContext, _: ModuleType) -> None:
    """Excludes the objects that exist after the first steps from garbage collection. Where it is
    switched off again, the collector's counters start anew, as freezing resets them. Where two
    frameworks are imported, the second call changes nothing more."""

    def freeze() -> None:
        if change.switch.is_on and not change.changed:
            gc.collect()
            gc.freeze()
            change.note()

    def switch() -> None:
        if not change.changed:
            freeze()
            return
        gc.freeze()
        if not change.switch.is_on:
            gc.unfreeze()

    context.on_step.append(freeze)
    change.switch.on_change.append(switch)


def _collect_together(change: Change, _: ProbeContext, optimizer: ModuleType) -> None:
    """Collects garbage only every so many updates, in the same update on all ranks."""
    updates = 0

    def collect(*_: Any) -> None:
        nonlocal updates
        updates += 1
        if change.switch.is_on and not change.changed:
            gc.disable()
            change.note()
        elif change.switch.is_on and updates % change.value == 0:
            gc.collect(1)

    def switch() -> None:
        if change.changed:
            (gc.disable if change.switch.is_on else gc.enable)()

    optimizer.register_optimizer_step_post_hook(collect)
    change.switch.on_change.append(switch)


def _autocast_call(change: Change, module: Any) -> str | None:
    """Computes calls of the module in bfloat16. Their outputs are float32 again, so that the loss
    is computed as before. The call goes where torch puts that of a compiled module: copies and
    pickles of the module do not have it."""
    torch = sys.modules["torch"]
    if not hasattr(module, "_compiled_call_impl"):
        return NO_ARGUMENT
    original = module._compiled_call_impl or module._call_impl
    device = next(module.parameters()).device.type

    def call(*inputs: Any, **kwargs: Any) -> Any:
        if wrap.compiling() or not change.switch.is_on:
            return original(*inputs, **kwargs)
        with torch.autocast(device, torch.bfloat16):
            outputs = original(*inputs, **kwargs)
        return _widen(outputs, torch)

    vars(module)["_compiled_call_impl"] = wrap.hidden(call)
    return None


def _widen(outputs: Any, torch: ModuleType) -> Any:
    """The outputs with bfloat16 tensors as float32, in plain containers too."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype is torch.bfloat16 else outputs
    if type(outputs) in (list, tuple):
        return type(outputs)(_widen(value, torch) for value in outputs)
    if hasattr(outputs, "items") and hasattr(outputs, "__setitem__"):
        for key, value in list(outputs.items()):
            outputs[key] = _widen(value, torch)
    return outputs


class _Accumulation:
    """Exchanges the gradients of a DistributedDataParallel only in the last of the micro-batches
    that are accumulated for an update."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._module: Any = None
        self._passes = 0
        """Training forward passes since the last update."""
        self._synced = False
        """Whether the gradients of all of them will be or are exchanged."""
        self._is_on = True
        """Whether the update that is prepared now is treated: all of it, or nothing of it."""

    def forward_begins(self, module: Any) -> None:
        """Before a training forward pass: decides whether its gradients are exchanged."""
        if self._module is None:
            self._module = module
        if module is not self._module:
            self._change.refuse(SEVERAL_MODULES)
            return
        if not self._passes:
            self._is_on = self._change.switch.is_on
        self._passes += 1
        if not self._is_on:
            return
        if not self._change.changed:
            self._change.note(sys._getframe(2))
        self._synced = self._passes % self._change.value == 0
        module.require_backward_grad_sync = self._synced

    def update_begins(self, *_: Any) -> None:
        """Before an update: exchanges gradients that were accumulated in fewer passes, as in the
        last group of an epoch."""
        module = self._module
        if module is None or not self._passes:
            return
        if self._is_on and not self._synced:
            distributed, group = sys.modules["torch.distributed"], module.process_group
            size = distributed.get_world_size(group)
            for parameter in module.parameters():
                if parameter.grad is not None:
                    distributed.all_reduce(parameter.grad, group=group)
                    parameter.grad.div_(size)
        self._passes, self._synced = 0, False
        module.require_backward_grad_sync = True


_accumulations: dict[int, _Accumulation] = {}
"""By the id of the treatment: two modules of torch are changed for it."""


def _skip_exchanges(change: Change, _: ProbeContext, distributed: ModuleType) -> None:
    """See `_Accumulation`."""
    torch = sys.modules["torch"]
    ddp = distributed.DistributedDataParallel
    original = ddp.forward
    accumulation = _accumulations.setdefault(id(change), _Accumulation(change))

    @functools.wraps(original)
    def forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not wrap.compiling():
            accumulation.forward_begins(module)
        return original(module, *inputs, **kwargs)

    ddp.forward = wrap.hidden(forward)


def _finish_exchanges(change: Change, _: ProbeContext, optimizer: ModuleType) -> None:
    accumulation = _accumulations.setdefault(id(change), _Accumulation(change))
    optimizer.register_optimizer_step_pre_hook(accumulation.update_begins)


_DDP, _OPTIMIZER = "torch.nn.parallel.distributed", "torch.optim.optimizer"
APPLICATIONS: dict[str, dict[str, Apply]] = {
    "gc-freeze": {"torch": _freeze_garbage, "tensorflow": _freeze_garbage},
    "gc-together": {_OPTIMIZER: _collect_together},
    "autocast-bf16": change_calls(_autocast_call),
    "ddp-no-sync": {_DDP: _skip_exchanges, _OPTIMIZER: _finish_exchanges},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
SWITCHABLE = frozenset(APPLICATIONS)
"""Those that can be switched on and off while the job runs."""
