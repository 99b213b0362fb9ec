"""Finds the models that this rank trains, for the treatments that change them.

A model is what the script gives to DistributedDataParallel. In any other job it is an outermost
module that is called while gradients are recorded, once an optimizer exists, and that has
parameters to train: the whole model, the root of FSDP, a network in a LightningModule, or generator
and discriminator. `torch.nn.Module.__call__` is replaced only until an update follows in which no
such module was new, and not while one is called, so torch.compile never sees it. torch's own hooks
for all modules are not used: torch.compile warns about them.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .. import wrap

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply
    from .treatment_adapter import Change

    Edit = Callable[[Change, Any], str | None]
    """Changes a module. None: it has; else why the module stays as it is."""


class RankModels:
    """The models of this rank, and what is changed in each of them."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._torch: Any = sys.modules["torch"]
        self.of_models: list[tuple[Change, Edit]] = []
        """What is changed in each model, before the ranks exchange or shard it where possible."""
        self.of_calls: list[tuple[Change, Edit]] = []
        """What is changed in each outermost module that is called; with DistributedDataParallel,
        that is the one which holds the model."""
        self._edited: weakref.WeakSet[Any] = weakref.WeakSet()
        """The models that were edited, and their parts."""
        self._called: weakref.WeakSet[Any] = weakref.WeakSet()
        """The outermost modules that were called."""
        self._has_new = False
        """Whether there is one that was not called before the last update."""
        self._original = self._torch.nn.Module.__call__
        self._watched = wrap.around(
            self._original, self._call_begins, self._call_ends, context.fail
        )
        optimizers: Any = sys.modules["torch.optim.optimizer"]
        optimizers.register_optimizer_step_post_hook(self._updated)
        self._before(self._torch.nn.parallel.DistributedDataParallel, self._distributes)
        self._before(optimizers.Optimizer, self._optimizes)

    def _before(self, kind: Any, begins: Callable[..., None]) -> None:
        """Calls `begins` with the arguments of each constructor of this class."""
        original = kind.__init__

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> None:
            try:
                begins(*args, **kwargs)
            except Exception as trouble:
                self._context.fail(trouble)
            original(*args, **kwargs)

        kind.__init__ = wrap.hidden(make)

    def _distributes(self, _: Any, module: Any = None, *__: Any, **___: Any) -> None:
        if hasattr(module, "modules"):
            self._edit_model(module, sys._getframe(2))

    def _optimizes(self, *_: Any, **__: Any) -> None:
        if not self._called:
            self._put(self._original, self._watched)

    def _put(self, expected: Any, call: Any) -> None:
        """Replaces how modules are called, unless another tool has."""
        if self._torch.nn.Module.__call__ is expected:
            self._torch.nn.Module.__call__ = call

    def _call_begins(self, args: tuple[Any, ...], _: dict[str, Any]) -> bool:
        self._put(self._watched, self._original)
        module, caller = args[0], sys._getframe(1)
        if module not in self._called and self._is_trained(module):
            self._called.add(module)
            self._has_new = True
            self._edit_model(module, caller)
            _edit(self.of_calls, module, caller)
        return True

    def _call_ends(self, _: bool, __: Any) -> None:
        self._put(self._original, self._watched)

    def _updated(self, *_: Any) -> None:
        if not self._has_new and not wrap.compiling():
            self._put(self._watched, self._original)
        self._has_new = False

    def _is_trained(self, module: Any) -> bool:
        torch = self._torch
        if not torch.is_grad_enabled() or torch.jit.is_tracing() or not self._context.adopt():
            return False
        parameters = list(module.parameters())
        return any(parameter.requires_grad for parameter in parameters) and not any(
            map(torch.nn.parameter.is_lazy, parameters)
        )

    def _edit_model(self, model: Any, caller: FrameType) -> None:
        """Edits the model, unless it is or has a part of one that was edited."""
        parts = list(model.modules())
        if not any(part in self._edited for part in parts):
            self._edited.update(parts)
            _edit(self.of_models, model, caller)


def _edit(edits: list[tuple[Change, Edit]], module: Any, caller: FrameType) -> None:
    for change, edit in edits:
        if change.attempt(functools.partial(edit, change, module)):
            change.note(caller)


_find_models = functools.cache(RankModels)
"""The models of this process, the same ones for all treatments."""


def change_models(edit: Edit) -> dict[str, Apply]:
    """The application of a treatment that changes each model."""

    def apply(change: Change, context: ProbeContext, _: ModuleType) -> None:
        _find_models(context).of_models.append((change, edit))

    return {"torch": apply}


def change_calls(edit: Edit) -> dict[str, Apply]:
    """The application of a treatment that changes how each outermost module is called."""

    def apply(change: Change, context: ProbeContext, _: ModuleType) -> None:
        _find_models(context).of_calls.append((change, edit))

    return {"torch": apply}
