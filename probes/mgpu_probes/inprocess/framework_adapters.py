"""The one table of the frameworks that are watched: which of their modules, and by which hooks.

A framework more is a folder of hooks and an entry here. A module of hooks may have
`attach(context)`, called once before its first hook: there it adds what it knows to the process
metadata. Each hook is a function that gets the module that was just imported.

Every Python of a job reads this file, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


BOXES_VARIABLE = "MGPU_DOCTOR_BOXES"
"""The environment variable that names the folder of black boxes; without it nothing is watched."""


class FrameworkAdapter:
    """How one framework is watched."""

    def __init__(self, name: str, patches: Mapping[str, Mapping[str, str]]) -> None:
        self.name = name
        self.hooks = {
            module: (hooks, function)
            for hooks, watched in patches.items()
            for module, function in watched.items()
        }
        """Modules of the framework, and the module and function here that patches each."""


_TORCH = {
    "wrap": {
        "torch.compiler": "follow",  # else hooks would run inside compiled regions
    },
    "torch_hooks.compilations": {
        "torch._dynamo.callback": "patch",
    },
    "torch_hooks.collectives": {
        "torch.distributed.distributed_c10d": "patch",
        "torch.distributed._functional_collectives": "patch_functional",
    },
    "torch_hooks.data_loader": {
        "torch.utils.data.dataloader": "patch",
    },
    "torch_hooks.optimizer_updates": {
        "torch.optim.optimizer": "patch",
        "torch.amp.grad_scaler": "patch_scaler",
        "torch.nn.utils.clip_grad": "patch_clipping",
    },
    "torch_hooks.accelerator": {
        "torch.amp.autocast_mode": "patch",
    },
    "torch_hooks.autograd": {
        "torch.autograd": "patch",
    },
    "torch_hooks.on_demand_trace": {
        "torch.autograd.profiler": "patch",
    },
    "torch_hooks.ddp": {
        "torch.nn.parallel.distributed": "patch",
    },
    "torch_hooks.parallel_strategies": {
        "torch.nn.parallel.data_parallel": "patch_data_parallel",
        "torch.distributed._composable.fsdp.fully_shard": "patch_fully_shard",
        "torch.distributed.fsdp._fully_shard._fully_shard": "patch_fully_shard",
        "torch.distributed._composable.fsdp._fsdp_state": "patch_fsdp_state",
        "torch.distributed.fsdp._fully_shard._fsdp_state": "patch_fsdp_state",
        "torch.distributed.fsdp.fully_sharded_data_parallel": "patch_fsdp",
        "torch.distributed.tensor.parallel.api": "patch_tensor",
        "torch.distributed.pipelining.stage": "patch_stage",
        "torch.distributed.pipelining.schedules": "patch_schedules",
        "torch.distributed.optim.zero_redundancy_optimizer": "patch_zero",
        "torch.distributed.optim.post_localSGD_optimizer": "patch_local_sgd",
        "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook": "patch_local_sgd",
        "torch.distributed.algorithms.model_averaging.averagers": "patch_local_sgd",
    },
    "torch_hooks.torch_checkpoints": {
        "torch.serialization": "patch",
        "torch.distributed.checkpoint.state_dict_saver": "patch_distributed",
        "torch.distributed.checkpoint.state_dict": "patch_state_dict",
    },
}
_TENSORFLOW = {
    "tf_hooks.graph_stamps": {
        "tensorflow.python.framework.auto_control_deps": "patch",
    },
    "tf_hooks.function_calls": {
        "tensorflow.python.eager.polymorphic_function.polymorphic_function": "patch",
    },
    "tf_hooks.returned_stamps": {
        "tensorflow.python.eager.polymorphic_function.concrete_function": "patch",
    },
    "tf_hooks.keras_optimizers": {
        "tensorflow.python.ops.resource_variable_ops": "patch_variables",
        "keras.src.backend.common.variables": "patch_variables",
        "keras.src.optimizers.base_optimizer": "patch",
        "tf_keras.src.optimizers.optimizer": "patch_legacy",
    },
    "tf_hooks.gradient_tapes": {
        "tensorflow.python.eager.backprop": "patch",
    },
    "tf_hooks.dataset_iterators": {
        "tensorflow.python.data.ops.iterator_ops": "patch",
        "tensorflow.python.distribute.input_lib": "patch_distributed",
    },
    "tf_hooks.tensorflow_metadata": {
        "tensorflow.python.distribute.distribute_lib": "patch",
    },
    "tf_hooks.distribution_strategies": {
        "tensorflow.python.distribute.collective_all_reduce_strategy": "patch_collective",
    },
    "tf_hooks.cluster_coordinator": {
        "tensorflow.python.distribute.coordinator.cluster_coordinator": "patch",
    },
    "tf_hooks.tensorflow_checkpoints": {
        "tensorflow.python.checkpoint.checkpoint": "patch_checkpoint",
        "keras.src.saving.saving_api": "patch_keras",
        "keras.src.backend.tensorflow.trainer": "patch_trainer",
    },
}
_RAY = {
    "ray_hooks": {
        "ray.train.v2._internal.execution.worker_group.thread_runner": "patch",
    },
}
_DEEPSPEED = {
    "deepspeed_hooks": {
        "deepspeed.runtime.engine": "patch",
    },
}
ADAPTERS = (
    FrameworkAdapter("torch", _TORCH),
    FrameworkAdapter("tensorflow", _TENSORFLOW),
    FrameworkAdapter("ray", _RAY),
    FrameworkAdapter("deepspeed", _DEEPSPEED),
)
