"""Treatments that change an argument of a call: data loaders, DistributedDataParallel, FSDP.

A call that has set an argument itself keeps it where the treatment would be no improvement; each
function below says when.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

from ..wrap import hidden

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .treatment_adapter import Change

    Apply = Callable[[Change, ProbeContext, ModuleType], None]
    Arguments = dict[str, Any]
    Edit = Callable[[Arguments], str | None]
    """Changes the arguments of a call. None: it has; else why the call stays as it is."""

ALREADY_SET, NO_ARGUMENT = "already-set", "no-argument"
ITERABLE_DATASET, NO_WORKERS = "iterable-dataset", "no-workers"


def edit_call(owner: Any, name: str, change: Change, edit: Edit) -> None:
    """Replaces `owner.name` by a function that edits its arguments first, while the treatment is
    on. An error in editing leaves the call as it is."""
    original = getattr(owner, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not change.switch.is_on:
            return original(*args, **kwargs)

        def edit_arguments() -> str | None:
            nonlocal args, kwargs
            bound = signature.bind(*args, **kwargs)
            reason = edit(bound.arguments)
            if reason is None:
                args, kwargs = bound.args, bound.kwargs
            return reason

        if change.attempt(edit_arguments):
            change.note(sys._getframe(1))
        return original(*args, **kwargs)

    setattr(owner, name, hidden(call))


def _load_in_background(change: Change, _: ProbeContext, dataloader: ModuleType) -> None:
    """Gives loaders without workers so many. Not those of iterable datasets: without a change to
    the dataset, each worker would load the same samples."""

    def edit(arguments: Arguments) -> str | None:
        if arguments.get("num_workers"):
            return ALREADY_SET
        if isinstance(arguments.get("dataset"), dataloader.IterableDataset):
            return ITERABLE_DATASET
        arguments.update(num_workers=change.value, persistent_workers=True)
        return None

    edit_call(dataloader.DataLoader, "__init__", change, edit)


def _keep_workers(change: Change, _: ProbeContext, dataloader: ModuleType) -> None:
    """Keeps the workers of loaders alive between epochs."""

    def edit(arguments: Arguments) -> str | None:
        if not arguments.get("num_workers"):
            return NO_WORKERS
        if arguments.get("persistent_workers"):
            return ALREADY_SET
        arguments["persistent_workers"] = True
        return None

    edit_call(dataloader.DataLoader, "__init__", change, edit)


def _prefetch_more(change: Change, _: ProbeContext, dataloader: ModuleType) -> None:
    """Lets each worker of a loader prepare so many batches in advance."""

    def edit(arguments: Arguments) -> str | None:
        if not arguments.get("num_workers"):
            return NO_WORKERS
        if arguments.get("prefetch_factor") == change.value:
            return ALREADY_SET
        arguments["prefetch_factor"] = change.value
        return None

    edit_call(dataloader.DataLoader, "__init__", change, edit)


def _pin_memory(change: Change, _: ProbeContext, dataloader: ModuleType) -> None:
    """Lets loaders put batches into pinned memory."""
    loader = dataloader.DataLoader
    edit_call(loader, "__init__", change, setting(loader.__init__, "pin_memory", True))


def _keep_gathered(change: Change, _: ProbeContext, fully_shard: ModuleType) -> None:
    """Keeps the parameters that forward has gathered until backward has used them."""
    edit = setting(fully_shard.fully_shard, "reshard_after_forward", False)
    edit_call(fully_shard, "fully_shard", change, edit)


def _mix_in_fsdp(change: Change, _: ProbeContext, fully_shard: ModuleType) -> None:
    """Computes in bfloat16 where the script sets no precision."""

    def edit(arguments: Arguments) -> str | None:
        if "mp_policy" in arguments:
            return ALREADY_SET
        torch = sys.modules["torch"]
        policy = sys.modules["torch.distributed.fsdp"].MixedPrecisionPolicy
        arguments["mp_policy"] = policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        return None

    edit_call(fully_shard, "fully_shard", change, edit)


def _set_in_ddp(argument: str, value: bool | None = None) -> Apply:
    """Sets an argument of DistributedDataParallel to `value`; None: to the treatment's value."""

    def apply(change: Change, _: ProbeContext, distributed: ModuleType) -> None:
        ddp, wanted = distributed.DistributedDataParallel, change.value if value is None else value
        edit_call(ddp, "__init__", change, setting(ddp.__init__, argument, wanted))

    return apply


def setting(function: Callable[..., Any], argument: str, value: Any) -> Edit:
    """Sets an argument, unless it has this value already."""
    default = inspect.signature(function).parameters[argument].default

    def edit(arguments: Arguments) -> str | None:
        if arguments.get(argument, default) == value:
            return ALREADY_SET
        arguments[argument] = value
        return None

    return edit


_LOADER, _DDP = "torch.utils.data.dataloader", "torch.nn.parallel.distributed"
_FULLY_SHARD = "torch.distributed.fsdp._fully_shard._fully_shard"
APPLICATIONS: dict[str, dict[str, Apply]] = {
    "loader-workers": {_LOADER: _load_in_background},
    "loader-persistent": {_LOADER: _keep_workers},
    "loader-prefetch": {_LOADER: _prefetch_more},
    "ddp-no-search": {_DDP: _set_in_ddp("find_unused_parameters", False)},
    "ddp-bucket-view": {_DDP: _set_in_ddp("gradient_as_bucket_view", True)},
    "ddp-static-graph": {_DDP: _set_in_ddp("static_graph", True)},
    "ddp-bucket-size": {_DDP: _set_in_ddp("bucket_cap_mb")},
    "loader-pin-memory": {_LOADER: _pin_memory},
    "fsdp-keep-gathered": {_FULLY_SHARD: _keep_gathered},
    "fsdp-mixed-bf16": {_FULLY_SHARD: _mix_in_fsdp},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
