"""Treatments of the repeated blocks of a model: activation checkpointing, and how many blocks FSDP
gathers in advance."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from .call_arguments import ALREADY_SET
from .rank_models import change_models

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .call_arguments import Apply
    from .treatment_adapter import Change

NO_BLOCKS, HAS_NORMALIZATION = "no-blocks", "batch-normalization"


def _checkpoint_blocks(_: Change, root: Any) -> str | None:
    """Checkpoints the repeated blocks of a model, whose names and classes stay the same. Not those
    with batch normalization: its running means would count each batch twice. Returns why there are
    none, or None."""
    torch = sys.modules["torch"]
    checkpoint = sys.modules["torch.utils.checkpoint"].checkpoint
    if getattr(root, "is_gradient_checkpointing", False):
        return ALREADY_SET
    refused, count = NO_BLOCKS, 0
    for block in _find_blocks(root, torch.nn):
        if type(block).__name__ == "CheckpointWrapper":
            refused = ALREADY_SET
        elif any(isinstance(part, _batch_norm(torch)) for part in block.modules()):
            refused = HAS_NORMALIZATION
        else:
            count += 1
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return None if count else refused


def _batch_norm(torch: Any) -> Any:
    return torch.nn.modules.batchnorm._BatchNorm


def _find_blocks(module: Any, nn: Any) -> Iterator[Any]:
    """The outermost modules with parts of their own that are in a list with others of their
    class."""
    blocks: list[Any] = []
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        kinds = [type(part) for part in module if any(True for _ in part.children())]
        blocks = [part for part in module if kinds.count(type(part)) > 1]
        yield from blocks
    for part in module.children():
        if not any(part is block for block in blocks):
            yield from _find_blocks(part, nn)


def _prefetch_blocks(change: Change, root: Any) -> str | None:
    """Lets each block gather the parameters of so many next blocks before its forward pass, and
    those of the previous ones before its backward pass. Returns why it cannot, or None."""
    depth = change.value
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    blocks = [part for part in root.modules() if isinstance(part, kind) and part is not root]
    if len(blocks) < 3:
        return NO_BLOCKS
    for place, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 1 + depth])
        block.set_modules_to_backward_prefetch(blocks[max(0, place - depth) : place][::-1])
    return None


APPLICATIONS: dict[str, dict[str, Apply]] = {
    "activation-checkpointing": change_models(_checkpoint_blocks),
    "fsdp-prefetch": change_models(_prefetch_blocks),
}
"""For each treatment, the modules that it changes, and the function that changes each."""
