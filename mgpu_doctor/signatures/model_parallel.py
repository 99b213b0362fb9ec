"""What trainers of large models and detectors say: sizes that do not divide, a loss of NaN."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="world-size-indivisible",
        code="failed-world-size",
        role=Role.CAUSE,
        needle=" is not divisible by ",
        pattern=(
            r"\b(?:AssertionError|RuntimeError|ValueError): (?:[Tt]he )?[Ww]orld[_ ]size"
            r"(?: ?[=(]? ?(?P<world>\d{1,7})\)?)? (?:is not|must be) divisible by "
            r"(?P<by>\w{1,60}(?: \w{1,40}){0,4})"
        ),
        meaning="{world} processes cannot be divided into groups of {by}.",
        fix=(
            "Start a number of processes that is a multiple of tensor × pipeline × context "
            "parallel size."
        ),
        example=(
            "RuntimeError: world_size (12) is not divisible by tensor_model_parallel_size (8)"
        ),
        origin="recalled: megatron/core/parallel_state.py of Megatron Core 0.9",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="global-batch-indivisible",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="global batch size (",
        pattern=(
            r"global batch size \((?P<batch>\d{1,9})\) is not divisible by micro batch size "
            r"\((?P<micro>\d{1,9})\) times data parallel size \((?P<ranks>\d{1,7})\)"
        ),
        meaning=(
            "The global batch of {batch} cannot be divided into micro-batches of {micro} on "
            "{ranks} data-parallel ranks."
        ),
        fix=("Make the global batch size a multiple of micro-batch size times data-parallel size."),
        example=(
            "AssertionError: global batch size (20) is not divisible by micro batch size "
            "(8) times data parallel size (4)"
        ),
        origin="recalled: megatron/core/num_microbatches_calculator.py of Megatron Core 0.9",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="checkpoint-parallel-size",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="Loading a checkpoint for MP=",
        pattern=(
            r"Loading a checkpoint for MP=(?P<parts>\d{1,5}) but world size is "
            r"(?P<world>\w{1,7})"
        ),
        meaning=(
            "The checkpoint has {parts} parts, and {world} processes load it: each loads one."
        ),
        fix=(
            "Start {parts} processes (`--nproc-per-node {parts}`); or check the folder if "
            "it has none."
        ),
        example="AssertionError: Loading a checkpoint for MP=4 but world size is 2",
        origin="recalled: llama/generation.py of llama 2",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="sequence-indivisible",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="of the tensor should be divisible by tensor parallel size",
        pattern=r"First dimension of the tensor should be divisible by tensor parallel size",
        meaning=(
            "Sequence parallelism splits the sequence over the tensor-parallel ranks, and "
            "its length is not a multiple of them."
        ),
        fix="Pad sequences to a multiple of the tensor-parallel size.",
        example=(
            "AssertionError: First dimension of the tensor should be divisible by tensor "
            "parallel size"
        ),
        origin="recalled: megatron/core/tensor_parallel/mappings.py of Megatron Core 0.9",
        weight=0.95,
    ),
    Signature(
        id="detector-loss-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="Loss became infinite or NaN at iteration",
        pattern=(
            r"FloatingPointError: Loss became infinite or NaN at "
            r"iteration=(?P<step>\d{1,12})"
        ),
        meaning="The loss was not a finite number at step {step}.",
        fix=(
            "Lower the learning rate, lengthen warm-up, clip gradients, and check the batch "
            "of that step."
        ),
        example="FloatingPointError: Loss became infinite or NaN at iteration=512!",
        origin="source: detectron2/engine/train_loop.py of detectron2",
        weight=0.95,
    ),
    Signature(
        id="fairseq-loss-scale",
        code="loss-nan",
        role=Role.CAUSE,
        needle="FloatingPointError: Minimum loss scale reached",
        pattern=r"FloatingPointError: Minimum loss scale reached \((?P<scale>[\d.e-]{1,20})\)",
        meaning="Gradients overflowed at every step until the loss scale could not go lower.",
        fix="Lower the learning rate, clip gradients, or train in bfloat16.",
        example=(
            "FloatingPointError: Minimum loss scale reached (0.0002). Your loss is probably "
            "exploding."
        ),
        origin="source: fairseq/optim/dynamic_loss_scaler.py of fairseq",
        weight=0.95,
    ),
    Signature(
        id="megatron-gradient-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="in local grad norm",
        pattern=r"found (?P<what>NaN|Inf|large value) in local grad norm",
        meaning="A gradient is {what}: this check stops before it spreads to other ranks.",
        fix=(
            "Look at the batch and the activations of that rank at that step; lower the "
            "learning rate."
        ),
        example=(
            "AssertionError: Rank 6: found NaN in local grad norm in backward pass before "
            "data-parallel communication collective"
        ),
        origin="recalled: megatron/core/distributed/param_and_grad_buffer.py of Megatron Core 0.9",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="loss-not-finite-stop",
        code="loss-nan",
        role=Role.CAUSE,
        needle=", stopping training",
        pattern=r"Loss is (?:-?nan|-?inf)(?:inity)?, stopping training",
        meaning="The loss is not a finite number, and the script stopped.",
        fix="Lower the learning rate, clip gradients, and check the batch.",
        example="Loss is nan, stopping training",
        origin="recalled: engine.py of torchvision's reference scripts",
        weight=0.95,
    ),
    Signature(
        id="tf-collective-late",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="Collective ops must be configured at program startup",
        pattern=r"RuntimeError: Collective ops must be configured at program startup",
        meaning="Operations ran before the multi-worker strategy was made.",
        fix="Create `MultiWorkerMirroredStrategy` as the first thing in the program.",
        example="RuntimeError: Collective ops must be configured at program startup",
        origin="source: tensorflow/python/eager/context.py of TensorFlow 2.15",
        weight=0.95,
    ),
    Signature(
        id="jax-barrier",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="DEADLINE_EXCEEDED: Barrier timed out",
        pattern=r"DEADLINE_EXCEEDED: Barrier timed out\. ",
        meaning="Not all JAX processes came to the barrier in time.",
        fix=(
            "Look at the processes that the message lists: they did not start, ended, or "
            "use another coordinator address."
        ),
        example=(
            "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. "
            "Barrier_id: PjRT_Client_Connect."
        ),
        origin="recalled: xla/tsl/distributed_runtime/coordination/coordination_service.cc of XLA",
        weight=0.7,
    ),
    Signature(
        id="safetensors-header",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Error while deserializing header",
        pattern=r"SafetensorError: Error while deserializing header: (?P<why>\w{1,60})",
        meaning=(
            "A safetensors file is damaged or cut off ({why}): often a pointer of Git LFS, "
            "or a copy that was interrupted."
        ),
        fix="Compare the file's size with the source and copy it again.",
        example=(
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"
        ),
        origin="source: safetensors of Hugging Face 0.4",
        weight=0.95,
    ),
    Signature(
        id="pickle-load-key",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="UnpicklingError: invalid load key",
        pattern=r"UnpicklingError: invalid load key, '(?P<key>[^']{1,8})'",
        meaning="The file is no checkpoint: often a pointer of Git LFS or a page of an error.",
        fix="Look at its first line (`head -c 100 FILE`) and download it again.",
        example="_pickle.UnpicklingError: invalid load key, '<'.",
        origin="source: Lib/pickle.py of CPython 3.11",
        weight=0.9,
    ),
    Signature(
        id="ddp-wrong-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="module must have its parameters and buffers on device",
        pattern=(
            r"module must have its parameters and buffers on device (?P<device>\S{1,20}) "
            r"\(device_ids\[0\]\) but found one of them on device: "
            r"(?P<other>\w{1,20}(?::\d{1,4})?)"
        ),
        meaning="The module is on {other}, and DataParallel wants it on {device}.",
        fix="Move the module first: `model.to('{device}')`.",
        example=(
            "RuntimeError: module must have its parameters and buffers on device cuda:2 "
            "(device_ids[0]) but found one of them on device: cpu"
        ),
        origin="source: torch/nn/parallel/data_parallel.py of torch 2.13",
        weight=0.95,
    ),
)
