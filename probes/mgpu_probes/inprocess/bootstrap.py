"""Installs the probe in this process: cheap, silent, and inert until torch or TensorFlow comes.

Every Python of a job passes through here, so this file and `imports.py` import next to nothing.
"""

from __future__ import annotations

import os
import sys

from .import_watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

FOLDER = "MGPU_DOCTOR_BOXES"
HOOKS = {
    "torch.compiler": ("wrap", "follow"),
    "torch._dynamo.callback": ("torch_hooks.compilations", "patch"),
    "torch.distributed.distributed_c10d": ("torch_hooks.collectives", "patch"),
    "torch.distributed._functional_collectives": ("torch_hooks.collectives", "patch_functional"),
    "torch.utils.data.dataloader": ("torch_hooks.data_loader", "patch"),
    "torch.optim.optimizer": ("torch_hooks.optimizer_updates", "patch"),
    "torch.amp.autocast_mode": ("torch_hooks.accelerator", "patch"),
    "torch.amp.grad_scaler": ("torch_hooks.optimizer_updates", "patch_scaler"),
    "torch.nn.utils.clip_grad": ("torch_hooks.optimizer_updates", "patch_clipping"),
    "torch.autograd": ("torch_hooks.autograd", "patch"),
    "torch.autograd.profiler": ("torch_hooks.on_demand_trace", "patch"),
    "torch.nn.parallel.distributed": ("torch_hooks.ddp", "patch"),
    "torch.nn.parallel.data_parallel": ("torch_hooks.parallel_strategies", "patch_data_parallel"),
    "torch.distributed._composable.fsdp.fully_shard": (
        "torch_hooks.parallel_strategies",
        "patch_fully_shard",
    ),
    "torch.distributed.fsdp._fully_shard._fully_shard": (
        "torch_hooks.parallel_strategies",
        "patch_fully_shard",
    ),
    "torch.distributed._composable.fsdp._fsdp_state": (
        "torch_hooks.parallel_strategies",
        "patch_fsdp_state",
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_state": (
        "torch_hooks.parallel_strategies",
        "patch_fsdp_state",
    ),
    "torch.distributed.fsdp.fully_sharded_data_parallel": (
        "torch_hooks.parallel_strategies",
        "patch_fsdp",
    ),
    "torch.distributed.tensor.parallel.api": ("torch_hooks.parallel_strategies", "patch_tensor"),
    "torch.distributed.pipelining.stage": ("torch_hooks.parallel_strategies", "patch_stage"),
    "torch.distributed.pipelining.schedules": (
        "torch_hooks.parallel_strategies",
        "patch_schedules",
    ),
    "torch.distributed.optim.zero_redundancy_optimizer": (
        "torch_hooks.parallel_strategies",
        "patch_zero",
    ),
    "torch.distributed.optim.post_localSGD_optimizer": (
        "torch_hooks.parallel_strategies",
        "patch_local_sgd",
    ),
    "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook": (
        "torch_hooks.parallel_strategies",
        "patch_local_sgd",
    ),
    "torch.distributed.algorithms.model_averaging.averagers": (
        "torch_hooks.parallel_strategies",
        "patch_local_sgd",
    ),
    "ray.train.v2._internal.execution.worker_group.thread_runner": ("ray_hooks", "patch"),
    "deepspeed.runtime.engine": ("torch_hooks.deepspeed", "patch"),
    "torch.serialization": ("torch_hooks.torch_checkpoints", "patch"),
    "torch.distributed.checkpoint.state_dict_saver": (
        "torch_hooks.torch_checkpoints",
        "patch_distributed",
    ),
    "torch.distributed.checkpoint.state_dict": (
        "torch_hooks.torch_checkpoints",
        "patch_state_dict",
    ),
    "tensorflow.python.framework.auto_control_deps": ("tf_hooks.graph_stamps", "patch"),
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": (
        "tf_hooks.function_calls",
        "patch",
    ),
    "tensorflow.python.eager.polymorphic_function.concrete_function": (
        "tf_hooks.returned_stamps",
        "patch",
    ),
    "tensorflow.python.ops.resource_variable_ops": ("tf_hooks.keras_optimizers", "patch_variables"),
    "tensorflow.python.eager.backprop": ("tf_hooks.gradient_tapes", "patch"),
    "tensorflow.python.data.ops.iterator_ops": ("tf_hooks.dataset_iterators", "patch"),
    "tensorflow.python.distribute.input_lib": ("tf_hooks.dataset_iterators", "patch_distributed"),
    "tensorflow.python.distribute.distribute_lib": ("tf_hooks.tensorflow_metadata", "patch"),
    "tensorflow.python.distribute.collective_all_reduce_strategy": (
        "tf_hooks.distribution_strategies",
        "patch_collective",
    ),
    "tensorflow.python.distribute.coordinator.cluster_coordinator": (
        "tf_hooks.cluster_coordinator",
        "patch",
    ),
    "tensorflow.python.checkpoint.checkpoint": (
        "tf_hooks.tensorflow_checkpoints",
        "patch_checkpoint",
    ),
    "keras.src.saving.saving_api": ("tf_hooks.tensorflow_checkpoints", "patch_keras"),
    "keras.src.backend.tensorflow.trainer": ("tf_hooks.tensorflow_checkpoints", "patch_trainer"),
    "keras.src.backend.common.variables": ("tf_hooks.keras_optimizers", "patch_variables"),
    "keras.src.optimizers.base_optimizer": ("tf_hooks.keras_optimizers", "patch"),
    "tf_keras.src.optimizers.optimizer": ("tf_hooks.keras_optimizers", "patch_legacy"),
}
_watches: list[Watch] = []


def install() -> bool:
    """Watches for the frameworks and patches them as they are imported. False: nothing to do."""
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
    if any(name.startswith("torch") for name in early):
        from .torch_hooks import torch_support

        torch_support.replace_early_imports()
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
