"""Calls that frameworks refuse or cannot finish: pickling, FSDP and DeepSpeed; and numbers that "
"are not
finite, in words of other versions."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_NUMBERS = (
    "Lower the learning rate, clip the gradients, check the batch for non-finite values; "
    "`torch.autograd.set_detect_anomaly(True)` names the operation."
)
_PICKLE = (
    "Define functions and classes at the top of a module; open files and connections inside the "
    "new process."
)


def _refused(
    name: str,
    code: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str,
    role: Role = Role.CAUSE,
    weight: float = 0.85,
    severity: str = "critical",
    least: int = 1,
    needle_tells: bool = False,
) -> Signature:
    """A call that was refused or failed, in the framework's own words."""
    return Signature(
        id=name,
        code=code,
        role=role,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        weight=weight,
        severity=severity,
        least=least,
        needle_tells=needle_tells,
    )


def _ends_for_nan(spelling: str) -> Signature:
    """Scripts that say in their own words that they stop because the loss is not a number."""
    return _refused(
        f"loss-{'spelled' if spelling == 'NaN' else 'is'}-nan-stops",
        "loss-nan",
        spelling,
        rf"^(?!.{{0,200}}?, stopping training).{{0,120}}?\b(?i:loss)\b.{{0,20}}?\b{spelling}\b.{{0"
        rf",40}}?"
        r"\b(?i:exit|stop|abort|terminat|halt)\w{0,6}\b",
        meaning="The loss is not a number, and the script stopped.",
        fix=_NUMBERS,
        example=f"ERROR: loss is {spelling}, exiting",
        origin="made: a script that stops when its loss is not finite",
        weight=0.6,
    )


SIGNATURES: tuple[Signature, ...] = (
    _refused(
        "pickle-too-large",
        "failed-spawn-pickling",
        "cannot serialize a bytes object larger than",
        r"cannot serialize a (?:bytes|string) object larger than 4 ?GiB",
        meaning="An object that a new process needs is larger than 4 GiB.",
        fix="Let each process load its data itself, or put it into shared memory.",
        example="OverflowError: cannot serialize a bytes object larger than 4 GiB",
        origin="recalled: Modules/_pickle.c of Python 3.8",
        weight=0.9,
        needle_tells=True,
    ),
    _refused(
        "pickle-get-local-object",
        "failed-spawn-pickling",
        "Can't get local object '",
        r"Can't get local object '(?P<name>[^']{1,200})'",
        meaning="A new process needs {name}, which is defined inside a function and cannot be "
        "pickled.",
        fix=_PICKLE,
        example="AttributeError: Can't get local object 'main.<locals>.<lambda>'",
        origin="made: Process(target=lambda: 0).start() under spawn, Python 3.13",
        weight=0.9,
        needle_tells=True,
    ),
    _refused(
        "pickle-hdf5",
        "failed-spawn-pickling",
        "h5py objects cannot be pickled",
        r"h5py objects cannot be pickled",
        meaning="A data set holds an open HDF5 file, which data-loader workers cannot get.",
        fix="Open the file in `__getitem__`, once per worker.",
        example="TypeError: h5py objects cannot be pickled",
        origin="recalled: h5py 3",
        weight=0.9,
        needle_tells=True,
    ),
    _refused(
        "fsdp-flatten-dtype",
        "failed-fsdp",
        "Must flatten tensors with the same dtype",
        r"Must flatten tensors with the same dtype",
        meaning="FSDP wraps parameters of different types in one unit.",
        fix="Convert the model to one type before it is wrapped (LoRA weights, norms).",
        example="ValueError: Must flatten tensors with the same dtype but got torch.bfloat16 and "
        "torch.float32",
        origin="recalled: torch/distributed/fsdp of torch 1.13",
        weight=0.95,
        needle_tells=True,
    ),
    _refused(
        "fsdp-flat-dtype",
        "failed-fsdp",
        "FlatParameter requires uniform",
        r"(?<!`)FlatParameter requires uniform (?P<what>\w{1,20})",
        meaning="FSDP wraps parameters of different {what} in one unit.",
        fix="Convert the model to one type, or freeze whole units.",
        example="ValueError: FlatParameter requires uniform dtype but got torch.float16 and "
        "torch.float32",
        origin="recalled: torch/distributed/fsdp of torch 2.0",
        weight=0.95,
    ),
    _refused(
        "fsdp-order-differs",
        "failed-fsdp",
        "Forward order differs across ranks",
        r"RuntimeError: Forward order differs across ranks",
        meaning="Ranks use FSDP's units in different orders: a branch of the model depends on the "
        "batch.",
        fix="Use the same modules on every rank in every step.",
        example="RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 3 "
        "parameters while rank 1 is all-gathering 1 parameters",
        origin="source: torch/distributed/fsdp/_exec_order_utils.py of torch 2.13",
        weight=0.9,
    ),
    _refused(
        "fsdp-training-state",
        "failed-fsdp",
        " TrainingState",
        r"(?:Expects|expected to be in|expects).{0,120}? but (?:got|current state is) "
        r"TrainingState_?\.",
        meaning="FSDP's units were used in an order that it does not support, such as an inner one "
        "without the outer one.",
        fix="Call the outermost module; wrap blocks that are called alone as roots of their own.",
        example="AssertionError: expects to be in states [TrainingState.IDLE] but got "
        "TrainingState.FORWARD_BACKWARD",
        origin="recalled: torch/distributed/fsdp of torch 2.0",
        weight=0.8,
    ),
    _refused(
        "deepspeed-config-error",
        "failed-deepspeed",
        "DeepSpeedConfigError",
        r"\bDeepSpeedConfigError\b",
        meaning="DeepSpeed rejected its configuration.",
        fix="Read the rest of the message, and compare the JSON with DeepSpeed's documentation.",
        example="deepspeed.runtime.config.DeepSpeedConfigError: Invalid fields",
        origin="source: deepspeed/runtime/config.py of DeepSpeed 0.16",
        weight=0.9,
    ),
    _refused(
        "deepspeed-config-differs",
        "failed-deepspeed",
        "Please correct the following DeepSpeed config values",
        r"Please correct the following DeepSpeed config values that mismatch TrainingArguments",
        meaning="DeepSpeed's configuration and the trainer's arguments contradict each other.",
        fix='Write "auto" for these values in the JSON.',
        example="ValueError: Please correct the following DeepSpeed config values that mismatch "
        "TrainingArguments values:",
        origin="recalled: transformers/integrations/deepspeed.py of Transformers 4",
        weight=0.95,
        needle_tells=True,
    ),
    _refused(
        "deepspeed-backend-not-set",
        "failed-deepspeed",
        "DeepSpeed backend not set, please initialize",
        r"DeepSpeed backend not set, please initialize",
        meaning="DeepSpeed was used before its process group exists.",
        fix="Call `deepspeed.init_distributed()` first.",
        example="AssertionError: DeepSpeed backend not set, please initialize it using "
        "init_process_group()",
        origin="recalled: deepspeed/comm/comm.py of DeepSpeed 0.10",
        weight=0.9,
        needle_tells=True,
    ),
    _refused(
        "non-finite-loss-ends",
        "loss-nan",
        "on-finite loss",
        r"\b[Nn]on-finite loss, ending training",
        meaning="The loss is not a finite number, and the script stopped.",
        fix=_NUMBERS,
        example="WARNING: non-finite loss, ending training tensor([nan, nan], device='cuda:0')",
        origin="recalled: train.py of YOLOv3",
        weight=0.9,
    ),
    _ends_for_nan("nan"),
    _ends_for_nan("NaN"),
    _refused(
        "gradients-nan",
        "loss-nan",
        "FloatingPointError: gradients are ",
        r"FloatingPointError: gradients are Nan/Inf",
        meaning="The gradients are not finite numbers.",
        fix=_NUMBERS,
        example="FloatingPointError: gradients are Nan/Inf",
        origin="recalled: fairseq/trainer.py of fairseq 0.10",
        weight=0.9,
    ),
    _refused(
        "distribution-of-nan-old",
        "loss-nan",
        "but found invalid values",
        r"to satisfy the constraint .{1,80}?, but found invalid values(?!:)",
        meaning="A distribution got parameters that are not numbers.",
        fix=_NUMBERS,
        example="ValueError: Expected parameter loc of distribution Normal to satisfy the "
        "constraint Real(), but found invalid values",
        origin="recalled: torch/distributions/distribution.py of torch 1.9",
        weight=0.85,
    ),
    _refused(
        "epoch-loss-nan",
        "loss-nan",
        "nan",
        r"^(?!\{)(?!.{0,200}?(?:%\||it/s))(?=.{0,120}?\b(?i:epoch|iter(?:ation)?|step)\b).{0,300}?"
        r"\b(?i:loss)\w{0,20}\s{0,3}[:=|]?\s{0,6}nan\b|\bloss\w{0,30}: nan, \w{0,10}loss\w{0,30}: "
        r"nan",
        meaning="The loss or the gradient that is printed is not a number.",
        fix="Go back to a checkpoint from before the first one. A smaller learning rate, clipped "
        "gradients and bf16 instead of fp16 are the usual remedies.",
        example="Epoch [1][658/742] lr: 5.000e-05, time: 0.396, loss_cls: nan, total: 0.0",
        origin="made: SGD with a learning rate of 1e30, torch 2.13",
        weight=0.6,
        severity="warning",
        least=2,
    ),
    _refused(
        "trainer-gradient-nan",
        "loss-nan",
        "'grad_norm': nan",
        r"'loss': 0\.0, 'grad_norm': nan",
        meaning="The gradients are not numbers, and the loss is 0: the weights are lost.",
        fix="Go back to a checkpoint from before the first one. A smaller learning rate, clipped "
        "gradients and bf16 instead of fp16 are the usual remedies.",
        example="{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}",
        origin="recalled: transformers/trainer.py of Transformers 4",
        weight=0.8,
        severity="warning",
        least=2,
    ),
)
