"""What FullyShardedDataParallel, fully_shard and DTensor raise."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="fsdp-mixed-dtype",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Must flatten tensors with uniform dtype",
        pattern=r"Must flatten tensors with uniform dtype but got (?P<first>[\w.]+) and "
        r"(?P<second>[\w.]+)",
        meaning="FSDP puts the parameters of one module into one tensor, and this module holds "
        "{first} and {second}.",
        fix="Convert the model to one type before wrapping (`model.to(torch.bfloat16)`) and use "
        "`MixedPrecision`; quantised or LoRA parts need a wrapping policy of their own.",
        example="ValueError: Must flatten tensors with uniform dtype but got torch.float32 and "
        "torch.float16",
        origin="made: FSDP of a module with a float and a half layer, torch 2.13",
    ),
    Signature(
        id="fsdp-mixed-requires-grad",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Must flatten tensors with uniform ",
        pattern=r"Must flatten tensors with uniform `?requires_grad`? when `?use_orig_params=False",
        meaning="One FSDP module holds frozen and trained parameters together.",
        fix="Use `FullyShardedDataParallel(..., use_orig_params=True)`, or wrap the frozen part "
        "by itself.",
        example="ValueError: Must flatten tensors with uniform `requires_grad` when "
        "`use_orig_params=False`",
        origin="made: FSDP of a half-frozen module, torch 2.13",
    ),
    Signature(
        id="fully-shard-mixed-dtype",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="FSDP expects uniform original parameter dtype",
        pattern=r"FSDP expects uniform original parameter dtype but got \{"
        r"(?P<dtypes>[^}]{1,200})\}",
        meaning="One `fully_shard` group holds parameters of several types ({dtypes}).",
        fix="Convert the model to one type before `fully_shard` and use `MixedPrecisionPolicy`; "
        "or call `fully_shard` on the parts by themselves.",
        example="AssertionError: FSDP expects uniform original parameter dtype but got "
        "{torch.float16, torch.float32}",
        origin="made: fully_shard of a module with a float and a half layer, torch 2.13",
    ),
    Signature(
        id="fully-shard-not-from-root",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="FSDP state has already been lazily initialized",
        pattern=r"FSDP state has already been lazily initialized for (?P<module>\S{1,200})",
        meaning="The submodule {module} was called by itself before the whole model was.",
        fix="Run the first forward pass through the root module; what must be called alone "
        "(`generate`, an encoder) belongs in the root's forward or in "
        "`register_fsdp_forward_method`.",
        example="RuntimeError: FSDP state has already been lazily initialized for a",
        origin="made: a submodule's forward before the root's, torch 2.13",
    ),
    Signature(
        id="fully-shard-meta",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="FSDP parameters should be materialized from meta device",
        pattern=r"FSDP parameters should be materialized from meta device before training, but "
        r"the following were still on meta device: \[(?P<parameters>[^\]]{1,300})",
        meaning="The model was made on the meta device, and some parameters never got values "
        "({parameters}).",
        fix="Call `model.to_empty(device=...)` after `fully_shard`, then initialise or load the "
        "checkpoint.",
        example="RuntimeError: FSDP parameters should be materialized from meta device before "
        "training, but the following were still on meta device: ['a.weight', 'a.bias']",
        origin="made: fully_shard of a model on the meta device, torch 2.13",
    ),
    Signature(
        id="fsdp-parameter-replaced",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Cannot writeback when the parameter shape changes",
        pattern=r"Cannot writeback when the parameter shape changes",
        meaning="A parameter was replaced by one of another shape after FSDP had wrapped the "
        "module.",
        fix="Change the model (resize embeddings, add heads) before wrapping it.",
        example="RuntimeError: Cannot writeback when the parameter shape changes",
        origin="made: a parameter replaced after FSDP wrapped its module, torch 2.13",
    ),
    Signature(
        id="dtensor-mixed",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="got mixed torch.Tensor and DTensor",
        pattern=r"(?P<operation>aten\.[\w.]{1,100}) got mixed torch\.Tensor and DTensor, need to "
        r"convert all torch\.Tensor to DTensor",
        meaning="{operation} got a sharded parameter (DTensor) and a plain tensor: a sharded "
        "module was used past its forward, only a part of the model is sharded, or a full state "
        "was loaded into a sharded model.",
        fix="Call modules, not their weights; shard the root too (`fully_shard(model)` last); "
        "load with `torch.distributed.checkpoint.state_dict.set_model_state_dict(..., "
        "StateDictOptions(full_state_dict=True))`.",
        example="RuntimeError: aten.mm.default got mixed torch.Tensor and DTensor, need to "
        "convert all torch.Tensor to DTensor before calling distributed operators!",
        origin="made: a sharded layer's weight in torch.nn.functional.linear, torch 2.13",
    ),
    Signature(
        id="fsdp-view-modified",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="is a view and its base or another view of its base has been modified inplace",
        pattern=r"Output \d+ of (?P<operation>\w+) is a view and its base or another view of its "
        r"base has been modified inplace",
        meaning="A view ({operation}) was used after its base was changed in place; under FSDP: a "
        "wrapped module's weight was used past its forward.",
        fix="Call the module instead of its weight. For tied weights wrap both users in one FSDP "
        "unit, or use `use_orig_params=True`; without FSDP replace the in-place operation.",
        example="RuntimeError: Output 0 of View is a view and its base or another view of its "
        "base has been modified inplace. This view is the output of a function that returns "
        "multiple views.",
        origin="made: a wrapped layer's weight used past its forward under FSDP, torch 2.13",
        weight=0.75,
    ),
    Signature(
        id="mesh-dimension-name",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Valid mesh_dim_names are",
        pattern=r"Invalid mesh_dim_names? \(?'(?P<name>\w+)'.{0,80}?Valid mesh_dim_names are \["
        r"(?P<valid>[^\]]{0,200})\]",
        meaning="The device mesh has no dimension {name}; it has {valid}.",
        fix="Name the dimensions in `init_device_mesh(..., mesh_dim_names=(...))` as they are "
        "used later.",
        example="KeyError: \"Invalid mesh_dim_names ('tp',) specified. Valid mesh_dim_names are "
        "['dp'].\"",
        origin="made: mesh['tp'] of a mesh with the dimension dp, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="fsdp-no-accelerator",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Cannot access accelerator device when none is available",
        pattern=r"Cannot access accelerator device when none is available",
        meaning="An option that needs an accelerator (such as `CPUOffloadPolicy`) is used where "
        "none is seen.",
        fix="Leave offloading out on CPUs; otherwise check `nvidia-smi -L` and "
        "CUDA_VISIBLE_DEVICES.",
        example="RuntimeError: Cannot access accelerator device when none is available.",
        origin="made: fully_shard with CPUOffloadPolicy on a machine without GPU, torch 2.13",
        weight=0.8,
    ),
    Signature(
        id="fsdp-dtypes-old",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="`FlatParameter` requires uniform dtype",
        pattern=r"`FlatParameter` requires uniform dtype but got (?P<first>[\w.]{1,40}) and "
        r"(?P<second>[\w.]{1,40})",
        meaning="FSDP flattens the parameters of a unit into one tensor, and this unit has "
        "{first} and {second}.",
        fix="Cast the model to one dtype before wrapping it (`model.to(torch.bfloat16)`), or wrap "
        "the modules of another dtype by themselves.",
        example="ValueError: `FlatParameter` requires uniform dtype but got torch.float32 and "
        "torch.bfloat16",
        origin="source: torch/distributed/fsdp/flat_param.py of torch 1.12",
    ),
    Signature(
        id="fsdp-frozen-old",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="`FlatParameter` requires uniform `requires_grad`",
        pattern=r"`FlatParameter` requires uniform `requires_grad`",
        meaning="FSDP flattens the parameters of a unit into one tensor, and this unit has frozen "
        "and trained ones.",
        fix="Pass `use_orig_params=True`, or wrap frozen modules by themselves.",
        example="ValueError: `FlatParameter` requires uniform `requires_grad`",
        origin="source: torch/distributed/fsdp/flat_param.py of torch 1.12",
    ),
    Signature(
        id="fsdp-root-twice",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Non-root FSDP instance's `_is_root`",
        pattern=r"Non-root FSDP instance's `_is_root` should not have been set yet",
        meaning="A module inside an FSDP model was called by itself before the whole model was.",
        fix="Call the outer FSDP module only, first of all; use `summon_full_params` for inner "
        "ones.",
        example="AssertionError: Non-root FSDP instance's `_is_root` should not have been set yet "
        "or should have been set to `False`",
        origin="source: torch/distributed/fsdp/_runtime_utils.py of torch 2.13",
    ),
    Signature(
        id="sharded-storage-empty",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle=" are out of bounds for storage of size 0",
        pattern=r"setStorage: sizes .{1,200} are out of bounds for storage of size 0",
        meaning="A parameter was used while its values were on the other ranks: FSDP had not "
        "gathered it.",
        fix="Call the module that FSDP wraps, not its inner functions; wrap modules that share "
        "parameters together, and use `use_orig_params=True`.",
        example="RuntimeError: setStorage: sizes [512, 512], strides [512, 1], storage offset 0, "
        "and itemsize 4 requiring a storage size of 1048576 are out of bounds for storage of size "
        "0",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="fsdp-flatten-dtype",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Must flatten tensors with the same dtype",
        pattern=r"Must flatten tensors with the same dtype",
        meaning="FSDP wraps parameters of different types in one unit.",
        fix="Convert the model to one type before it is wrapped (LoRA weights, norms).",
        example="ValueError: Must flatten tensors with the same dtype but got torch.bfloat16 and "
        "torch.float32",
        origin="recalled: torch/distributed/fsdp of torch 1.13",
        weight=0.95,
    ),
    Signature(
        id="fsdp-flat-dtype",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="FlatParameter requires uniform",
        pattern=r"(?<!`)FlatParameter requires uniform (?P<what>\w{1,20})",
        meaning="FSDP wraps parameters of different {what} in one unit.",
        fix="Convert the model to one type, or freeze whole units.",
        example="ValueError: FlatParameter requires uniform dtype but got torch.float16 and "
        "torch.float32",
        origin="recalled: torch/distributed/fsdp of torch 2.0",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="fsdp-order-differs",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle="Forward order differs across ranks",
        pattern=r"RuntimeError: Forward order differs across ranks",
        meaning="Ranks use FSDP's units in different orders: a branch of the model depends on the "
        "batch.",
        fix="Use the same modules on every rank in every step.",
        example="RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 3 "
        "parameters while rank 1 is all-gathering 1 parameters",
        origin="source: torch/distributed/fsdp/_exec_order_utils.py of torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="fsdp-training-state",
        code="failed-fsdp",
        role=Role.CAUSE,
        needle=" TrainingState",
        pattern=r"(?:Expects|expected to be in|expects).{0,120}? but (?:got|current state is) "
        r"TrainingState_?\.",
        meaning="FSDP's units were used in an order that it does not support, such as an inner "
        "one without the outer one.",
        fix="Call the outermost module; wrap blocks that are called alone as roots of their own.",
        example="AssertionError: expects to be in states [TrainingState.IDLE] but got "
        "TrainingState.FORWARD_BACKWARD",
        origin="recalled: torch/distributed/fsdp of torch 2.0",
        weight=0.8,
    ),
)
