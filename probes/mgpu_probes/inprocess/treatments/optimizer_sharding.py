"""A treatment that divides the states of an optimizer among the ranks: ZeRO-1."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from .optimizer_changes import OPTIMIZERS

if TYPE_CHECKING:
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply
    from .treatment_adapter import Change

NO_GROUP = "no-group"
_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"


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


APPLICATIONS: dict[str, dict[str, Apply]] = {
    "optimizer-zero1": {
        f"torch.optim.{module}": _shard(kind) for module, kind in OPTIMIZERS.items()
    }
}
"""For each treatment, the modules that it changes, and the function that changes each."""
