"""Installs the probe in this process: cheap, silent, and inert until torch comes.

Every Python of a job passes through here, so this file and `imports.py` import next to nothing.
"""

from __future__ import annotations

import os
import sys

from .imports import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

FOLDER = "MGPU_DOCTOR_BOXES"
HOOKS = {
    "torch.compiler": ("wrap", "follow"),
    "torch._dynamo.callback": ("torch_hooks.compiler", "patch"),
    "torch.distributed.distributed_c10d": ("torch_hooks.collectives", "patch"),
    "torch.distributed._functional_collectives": ("torch_hooks.collectives", "patch_functional"),
    "torch.utils.data.dataloader": ("torch_hooks.loader", "patch"),
    "torch.optim.optimizer": ("torch_hooks.optimizer", "patch"),
    "torch.amp.autocast_mode": ("torch_hooks.accelerator", "patch"),
    "torch.amp.grad_scaler": ("torch_hooks.optimizer", "patch_scaler"),
    "torch.autograd": ("torch_hooks.autograd", "patch"),
    "torch.nn.parallel.distributed": ("torch_hooks.ddp", "patch"),
    "torch.nn.parallel.data_parallel": ("torch_hooks.parallel", "patch_data_parallel"),
    "torch.distributed._composable.fsdp.fully_shard": ("torch_hooks.parallel", "patch_fully_shard"),
    "torch.distributed.fsdp._fully_shard._fully_shard": (
        "torch_hooks.parallel",
        "patch_fully_shard",
    ),
    "torch.distributed._composable.fsdp._fsdp_state": ("torch_hooks.parallel", "patch_fsdp_state"),
    "torch.distributed.fsdp._fully_shard._fsdp_state": ("torch_hooks.parallel", "patch_fsdp_state"),
    "torch.distributed.fsdp.fully_sharded_data_parallel": ("torch_hooks.parallel", "patch_fsdp"),
    "torch.distributed.tensor.parallel.api": ("torch_hooks.parallel", "patch_tensor"),
    "torch.distributed.pipelining.stage": ("torch_hooks.parallel", "patch_pipeline"),
    "torch.serialization": ("torch_hooks.saving", "patch"),
    "torch.distributed.checkpoint.state_dict_saver": ("torch_hooks.saving", "patch_distributed"),
}
_watches: list[Watch] = []


def install() -> bool:
    """Watches for torch and patches it as it is imported. False where there is nothing to do."""
    if _watches or not os.environ.get(FOLDER):
        return False
    watch = Watch(frozenset(HOOKS), _patch, _failed)
    _watches.append(watch)
    sys.meta_path.insert(0, watch)
    if os.environ.get("RANK"):
        from . import process  # so that a rank that never gets as far as torch leaves its exception

        process.start()
    early = [name for name in HOOKS if name in sys.modules]
    for name in early:
        watch.patch(name, sys.modules[name])
    if early:
        from .torch_hooks import late

        late.spread()
    return True


def _patch(name: str, module: ModuleType) -> None:
    from importlib import import_module

    from . import process

    process.start()
    hooks, function = HOOKS[name]
    getattr(import_module(f".{hooks}", __package__), function)(module)


def _failed(trouble: Exception) -> None:
    from .rank import probe

    probe.fail(trouble)
