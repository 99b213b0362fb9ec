"""The blocks of a model through torch.compile."""

import importlib.util
import os
import shutil
import sys

import torch
from torch import nn


def missing(device: torch.device) -> str | None:
    """What torch.compile needs there and does not find, as the rest of a sentence."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "needs Triton, which compiles for GPUs: pip install triton"
        return None
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return (
            f"needs a C++ compiler on CPUs, and there is no {compiler}: install one (on Debian and "
            "Ubuntu: apt install g++), or name yours in CXX"
        )
    return None


class Compiled:
    """What a block computes is compiled, and nothing around it: hooks, faults and wrappers stay
    as they are, and blocks of a kind are compiled once."""

    def __init__(self, model: nn.Module) -> None:
        self._before = [(each, each.forward) for each in model.get_submodule("blocks").children()]
        for block, forward in self._before:
            block.forward = torch.compile(forward, dynamic=False)

    def undo(self) -> None:
        """For batches of other sizes, which would all be compiled anew."""
        for block, forward in self._before:
            block.forward = forward
