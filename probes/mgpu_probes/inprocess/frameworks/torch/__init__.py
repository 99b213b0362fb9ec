"""The adapter of PyTorch: which of its modules are patched, and by which hooks."""

from __future__ import annotations

from ...framework_adapters import HookTable

ADAPTER = HookTable(
    "torch",
    __name__,
    {
        "torch_support": {
            "torch.compiler": "follow_compiler",  # else hooks would run inside compiled regions
        },
        "compilations": {
            "torch._dynamo.callback": "patch",
        },
        "collectives": {
            "torch.distributed.distributed_c10d": "patch",
        },
        "compiled_collectives": {
            "torch.distributed._functional_collectives": "patch_functional",
            "torch.distributed._symmetric_memory": "patch_symmetric_memory",
            "torch._inductor.codecache": "patch_regions",  # up to torch 2.5
            "torch._inductor.output_code": "patch_regions",
        },
        "remote_calls": {
            "torch.distributed.rpc.api": "patch",
            "torch.distributed.rpc": "patch_joining",
            "torch.distributed.autograd": "patch_autograd",
            "torch.distributed.optim.optimizer": "patch_optimizer",
        },
        "data_loader": {
            "torch.utils.data.dataloader": "patch",
        },
        "optimizer_updates": {
            "torch.optim.optimizer": "patch",
            "torch.amp.grad_scaler": "patch_scaler",
            "torch.nn.utils.clip_grad": "patch_clipping",
        },
        "accelerator": {
            "torch.amp.autocast_mode": "patch",
        },
        "autograd": {
            "torch.autograd": "patch",
        },
        "resting_hooks": {
            "torch.optim": "patch",
        },
        "cuda_captures": {
            "torch.cuda.graphs": "patch",
        },
        "on_demand_trace": {
            "torch.autograd.profiler": "patch",
        },
        "ddp": {
            "torch.nn.parallel.distributed": "patch",
        },
        "parallel_strategies": {
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
        "torch_checkpoints": {
            "torch.serialization": "patch",
            "torch.distributed.checkpoint.state_dict_saver": "patch_distributed",
            "torch.distributed.checkpoint.state_dict": "patch_state_dict",
        },
    },
    metadata="accelerator",
)
