"""Treatments that change how an optimizer updates parameters: in one operation, in groups, or each
rank its part.

In whole runs an argument of the optimizer is changed. Where the treatment is switched while the job
runs, the optimizer reads its settings in each step, so they are changed in its parameter groups.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import weakref
from typing import TYPE_CHECKING, Any

from ..wrap import hidden
from .call_arguments import ALREADY_SET, NO_ARGUMENT, edit_call, setting

if TYPE_CHECKING:
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply, Arguments
    from .treatment_adapter import Change

NO_GROUP = "no-group"
_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"


class _Optimizers:
    """The optimizers of this process, in which an argument is switched on and off."""

    def __init__(self, change: Change, argument: str, excluded: str) -> None:
        self._change = change
        self._argument = argument
        self._excluded = excluded
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._before: weakref.WeakKeyDictionary[Any, list[dict[str, Any]]]
        self._before = weakref.WeakKeyDictionary()
        """The settings of the groups of those in which it is on."""
        change.switch.on_change.append(self._switch_all)

    def watch(self, kind: Any) -> None:
        """Learns of each optimizer of this class when it is made."""
        original = kind.__init__

        @functools.wraps(original)
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if optimizer in self._known:  # AdamW calls Adam
                return
            if all(group[self._argument] for group in optimizer.param_groups):
                self._change.refuse(ALREADY_SET)
                return
            self._known.add(optimizer)
            self._change.note(sys._getframe(1))
            if self._change.switch.is_on:
                self._switch(optimizer)

        kind.__init__ = hidden(make)

    def _switch_all(self) -> None:
        for optimizer in list(self._known):
            self._switch(optimizer)

    def _switch(self, optimizer: Any) -> None:
        """Sets the argument and unsets the one that excludes it, or sets both as they were."""
        names = (self._argument, self._excluded)
        groups = optimizer.param_groups
        if self._change.switch.is_on:
            self._before[optimizer] = [{name: group[name] for name in names} for group in groups]
            wanted = [{self._argument: True, self._excluded: None}] * len(groups)
        else:
            wanted = self._before.pop(optimizer, [])
        for group, settings in zip(groups, wanted, strict=False):
            group.update(settings)
            _move_step_counts(optimizer, group)
        # A GradScaler leaves scaling to fused operations.
        optimizer._step_supports_amp_scaling = any(group["fused"] for group in groups)


def _move_step_counts(optimizer: Any, group: dict[str, Any]) -> None:
    """Fused operations want the counts of steps where the parameters are, others on the host."""
    if group.get("capturable"):
        return
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if hasattr(state.get("step"), "to"):
            state["step"] = state["step"].to(parameter.device if group["fused"] else "cpu")


@functools.cache
def _find_optimizers(change: Change, argument: str, excluded: str) -> _Optimizers:
    """The same ones for all modules of torch that are changed for a treatment."""
    return _Optimizers(change, argument, excluded)


def _set_in_optimizer(kind: str, argument: str, excluded: str) -> Apply:
    """Sets an argument of the optimizer of this class, and unsets the one that excludes it."""

    def apply(change: Change, _: ProbeContext, module: ModuleType) -> None:
        optimizer = getattr(module, kind)
        if argument not in inspect.signature(optimizer.__init__).parameters:
            change.refuse(NO_ARGUMENT, f"{kind} of this torch")
            return
        if change.switch.is_scheduled:
            _find_optimizers(change, argument, excluded).watch(optimizer)
            return
        set_argument = setting(optimizer.__init__, argument, True)

        def edit(arguments: Arguments) -> str | None:
            reason = set_argument(arguments)
            if reason is None and arguments.get(excluded):
                arguments[excluded] = None
            return reason

        edit_call(optimizer, "__init__", change, edit)

    return apply


def _shard(kind: str) -> Apply:
    """Makes a ZeroRedundancyOptimizer where the script makes an optimizer of this class. Its own
    part of it is made as before. Subclasses, and optimizers made before the ranks have met, stay as
    they are."""

    def apply(change: Change, _: ProbeContext, module: ModuleType) -> None:
        optimizer = getattr(module, kind)
        signature = inspect.signature(optimizer.__init__)

        def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            is_part = caller.f_globals.get("__name__") == _ZERO
            if cls is not optimizer or is_part or not (args or kwargs):
                return object.__new__(cls)
            distributed = sys.modules["torch.distributed"]
            if not distributed.is_initialized() or distributed.get_world_size() < 2:
                change.refuse(NO_GROUP)
                return object.__new__(cls)
            options = dict(signature.bind(None, *args, **kwargs).arguments)
            options.pop("self")
            sharded = importlib.import_module(_ZERO).ZeroRedundancyOptimizer(
                options.pop("params"), optimizer, parameters_as_bucket_view=True, **options
            )
            change.note(caller)
            return sharded

        optimizer.__new__ = create

    return apply


def _drop_gradients(change: Change, _: ProbeContext, module: ModuleType) -> None:
    """Drops gradients in `zero_grad` calls that ask for zeros instead."""
    zero_grad = module.Optimizer.zero_grad
    edit_call(module.Optimizer, "zero_grad", change, setting(zero_grad, "set_to_none", True))


OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad"}
"""Those with a fused implementation for the CPU too."""
APPLICATIONS: dict[str, dict[str, Apply]] = {
    "optimizer-fused": {
        f"torch.optim.{module}": _set_in_optimizer(kind, "fused", "foreach")
        for module, kind in OPTIMIZERS.items()
    },
    "optimizer-foreach": {
        f"torch.optim.{module}": _set_in_optimizer(kind, "foreach", "fused")
        for module, kind in OPTIMIZERS.items()
    },
    "optimizer-zero1": {
        f"torch.optim.{module}": _shard(kind) for module, kind in OPTIMIZERS.items()
    },
    "drop-gradients": {"torch.optim.optimizer": _drop_gradients},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
SWITCHABLE = frozenset(APPLICATIONS) - {"optimizer-zero1"}
"""Those that can be switched on and off while the job runs."""
