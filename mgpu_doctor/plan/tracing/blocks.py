"""Activation checkpointing of any model: of what is repeated in it, as people would do by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def recompute(model: nn.Module, every: int) -> bool:
    """Each so-manieth of the repeated blocks keeps its inputs alone, and computes the rest again
    in backward. False: nothing in the model is repeated."""
    found = list(repeated(model))
    for block in found[::every]:
        again = partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = again
    return bool(found)


def repeated(module: nn.Module) -> Iterator[nn.Module]:
    """The members of containers that hold several modules of one kind, each of several layers.

    The outermost such containers; where their members are such containers (a ResNet's stages),
    these.
    """
    members = list(module.children())
    alike = len(members) > 1 and len({type(member) for member in members}) == 1
    if isinstance(module, _CONTAINERS) and alike and all(map(_composed, members)):
        for member in members:
            inner = list(repeated(member)) if isinstance(member, _CONTAINERS) else []
            yield from inner or [member]
    else:
        for member in members:
            yield from repeated(member)


def _composed(module: nn.Module) -> bool:
    return next(module.children(), None) is not None
