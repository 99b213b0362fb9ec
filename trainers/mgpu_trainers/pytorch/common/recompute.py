"""Activation checkpointing: what a block computed is forgotten and computed again in backward."""

from functools import partial
from typing import Any

from torch import nn
from torch.utils import checkpoint

DEAR = frozenset(
    f"aten.{name}.default"
    for name in (
        *("mm", "addmm", "bmm", "convolution"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
    )
)
"""Operations whose results selective checkpointing keeps: most of the work, few of the bytes."""


def recompute(model: nn.Module, kind: str) -> None:
    """Inside each block, so that what wraps or hooks a block stays outside.

    `kind`: full, or selective, which keeps what was dear to compute.
    """
    more: dict[str, Any] = {}
    if kind == "selective":
        more["context_fn"] = partial(checkpoint.create_selective_checkpoint_contexts, keep_dear)
    for block in model.get_submodule("blocks").children():
        again = partial(checkpoint.checkpoint, block.forward, use_reentrant=False, **more)
        block.forward = again


def keep_dear(_context: Any, operation: Any, *_: Any, **__: Any) -> checkpoint.CheckpointPolicy:
    kept = str(operation) in DEAR
    policies = checkpoint.CheckpointPolicy
    return policies.MUST_SAVE if kept else policies.PREFER_RECOMPUTE
