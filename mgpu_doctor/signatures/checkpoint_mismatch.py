"""Checkpoints of torch that do not fit the model, the optimizer or the devices."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_SAME_MODEL = (
    "Build the model as it was when it was saved. If only `module.` (DDP's prefix) is too much: "
    "`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'module.')`."
)
_MODEL = "Build the model as it was when the checkpoint was saved, or load with `strict=False`."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="state-dict-size",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="copying a param with shape",
        pattern=r"size mismatch for (?P<parameter>[\w.]{1,200}): copying a param with shape "
        r"torch\.Size\(\[(?P<saved>[\d, ]*)\]\) from checkpoint, the shape in current model is "
        r"torch\.Size\(\[(?P<current>[\d, ]*)\]\)",
        meaning="{parameter} is [{saved}] in the checkpoint and [{current}] in the model.",
        fix="Build the model with the sizes it was saved with (classes, vocabulary, width), or "
        "drop these entries from the state before loading with `strict=False`.",
        example="\tsize mismatch for weight: copying a param with shape torch.Size([5, 4]) from "
        "checkpoint, the shape in current model is torch.Size([4, 4]).",
        origin="made: load_state_dict of a layer of another width, torch 2.13",
    ),
    Signature(
        id="state-dict-keys",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="key(s) in state_dict: ",
        pattern=r"^\s*(?P<which>Missing|Unexpected) key\(s\) in state_dict: "
        r"(?P<keys>\"[^\"]{1,200}\"(?:, \"[^\"]{1,200}\"){0,3})",
        meaning="The names in the checkpoint and in the model differ ({which} {keys}).",
        fix=_SAME_MODEL,
        example='\tUnexpected key(s) in state_dict: "module.0.weight". ',
        origin="made: load_state_dict of a DDP model's state into the bare model, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="state-dict-load",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="in loading state_dict for ",
        pattern=r"RuntimeError: Error\(s\) in loading state_dict for (?P<model>[\w.]{1,200}):",
        meaning="The checkpoint does not fit the model {model}; the lines below it say where.",
        fix=_SAME_MODEL,
        example="RuntimeError: Error(s) in loading state_dict for Sequential:",
        origin="made: load_state_dict of another model's state, torch 2.13",
        weight=0.85,
        more_heads=("RuntimeError: Error(s) in loading",),
    ),
    Signature(
        id="state-dict-key-old",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="unexpected key ",
        pattern=r"KeyError: .{0,3}unexpected key \"(?P<key>[\w.]{1,200})\" in state_dict",
        meaning="The checkpoint has a weight {key} that the model has not.",
        fix=_MODEL + " A prefix `module.` comes from DataParallel and DDP.",
        example="KeyError: 'unexpected key \"module.features.0.weight\" in state_dict'",
        origin="recalled: torch/nn/modules/module.py of torch 0.3",
        weight=0.95,
    ),
    Signature(
        id="optimizer-state-groups",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="loaded state dict ",
        pattern=r"ValueError: loaded state dict (?:has a different number of parameter groups|"
        r"contains a parameter group that doesn't match the size of optimizer's group)",
        meaning="The optimizer's saved state belongs to other parameter groups than it has now.",
        fix="Freeze and group the parameters as in the run that saved it, before the optimizer is "
        "made; or start with a new optimizer state.",
        example="ValueError: loaded state dict contains a parameter group that doesn't match the "
        "size of optimizer's group",
        origin="made: an optimizer's state loaded for a model without bias, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="checkpoint-of-cuda-on-cpu",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Attempting to deserialize object on a CUDA",
        pattern=r"Attempting to deserialize object on a CUDA device but "
        r"torch\.cuda\.is_available\(\) is False",
        meaning="The checkpoint was saved from a GPU, and this process sees none.",
        fix="Load it with `torch.load(path, map_location='cpu')`; if there should be a GPU, check "
        "the driver and CUDA_VISIBLE_DEVICES.",
        example="RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False. If you are running on a CPU-only machine, please use "
        "torch.load with map_location=torch.device('cpu') to map your storages to the CPU.",
        origin="made: torch.load of CUDA tensors on a CPU machine, torch 2.13",
    ),
    Signature(
        id="checkpoint-of-more-gpus",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Attempting to deserialize object on CUDA device",
        pattern=r"Attempting to deserialize object on CUDA device (?P<device>\d+) but "
        r"torch\.cuda\.device_count\(\) is (?P<count>\d+)",
        meaning="The checkpoint was saved from GPU {device}, and this process sees {count}.",
        fix="Load it with `torch.load(path, map_location='cpu')`, or to this rank's own GPU.",
        example="RuntimeError: Attempting to deserialize object on CUDA device 3 but "
        "torch.cuda.device_count() is 2. Please use torch.load with map_location to map your "
        "storages to an existing device.",
        origin="source: torch/serialization.py of torch 2.13",
    ),
    Signature(
        id="dcp-missing-key",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Missing key in checkpoint state_dict",
        pattern=r"Missing key in checkpoint state_dict: (?P<key>\S{1,300}?)\.$",
        meaning="The distributed checkpoint does not hold {key}, which is asked for.",
        fix="Load what was saved (model and optimizer of the same names), or "
        "`DefaultLoadPlanner(allow_partial_load=True)`.",
        example="RuntimeError: Missing key in checkpoint state_dict: model.head.weight.",
        origin="made: dcp.load of a name that was not saved, torch 2.13",
    ),
    Signature(
        id="dcp-size",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Size mismatch between saved ",
        pattern=r"Size mismatch between saved torch\.Size\(\[(?P<saved>[\d, ]*)\]\) and current: "
        r"torch\.Size\(\[(?P<current>[\d, ]*)\]\) for (?P<key>\S{1,300})",
        meaning="{key} is [{saved}] in the distributed checkpoint and [{current}] in the model.",
        fix="Build the model with the sizes it was saved with.",
        example="ValueError: Size mismatch between saved torch.Size([2]) and current: "
        "torch.Size([3]) for a",
        origin="made: dcp.load into a tensor of another size, torch 2.13",
    ),
)
