"""Batches, heads, sequences and world sizes that a parallel layout does not divide."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_SPLIT = "Choose a number of GPUs that divides it."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="world-size-indivisible",
        code="failed-world-size",
        role=Role.CAUSE,
        needle=" is not divisible by ",
        pattern=r"\b(?:AssertionError|RuntimeError|ValueError): (?:[Tt]he )?[Ww]orld[_ ]size(?: "
        r"?[=(]? ?(?P<world>\d{1,7})\)?)? (?:is not|must be) divisible by (?P<by>\w{1,60}(?: "
        r"\w{1,40}){0,4})",
        meaning="{world} processes cannot be divided into groups of {by}.",
        fix="Start a number of processes that is a multiple of tensor × pipeline × context "
        "parallel size.",
        example="RuntimeError: world_size (12) is not divisible by tensor_model_parallel_size (8)",
        origin="recalled: megatron/core/parallel_state.py of Megatron Core 0.9",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="global-batch-indivisible",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="global batch size (",
        pattern=r"global batch size \((?P<batch>\d{1,9})\) is not divisible by micro batch size \("
        r"(?P<micro>\d{1,9})\) times data parallel size \((?P<ranks>\d{1,7})\)",
        meaning="The global batch of {batch} cannot be divided into micro-batches of {micro} on "
        "{ranks} data-parallel ranks.",
        fix="Make the global batch size a multiple of micro-batch size times data-parallel size.",
        example="AssertionError: global batch size (20) is not divisible by micro batch size (8) "
        "times data parallel size (4)",
        origin="recalled: megatron/core/num_microbatches_calculator.py of Megatron Core 0.9",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="checkpoint-parallel-size",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="Loading a checkpoint for MP=",
        pattern=r"Loading a checkpoint for MP=(?P<parts>\d{1,5}) but world size is "
        r"(?P<world>\w{1,7})",
        meaning="The checkpoint has {parts} parts, and {world} processes load it: each loads one.",
        fix="Start {parts} processes (`--nproc-per-node {parts}`); or check the folder if it has "
        "none.",
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
        meaning="Sequence parallelism splits the sequence over the tensor-parallel ranks, and its "
        "length is not a multiple of them.",
        fix="Pad sequences to a multiple of the tensor-parallel size.",
        example="AssertionError: First dimension of the tensor should be divisible by tensor "
        "parallel size",
        origin="recalled: megatron/core/tensor_parallel/mappings.py of Megatron Core 0.9",
        weight=0.95,
    ),
    Signature(
        id="trt-llm-world-size",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="Assertion failed: mpiSize == ",
        pattern=r"Assertion failed: mpiSize == tp \* pp",
        meaning="The number of MPI processes is not the product of tensor and pipeline "
        "parallelism.",
        fix="Start as many processes as the engine was built for (`mpirun -n`).",
        example="[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp "
        "(/src/tensorrt_llm/runtime/worldConfig.cpp:99)",
        origin="recalled: cpp/tensorrt_llm/runtime/worldConfig.cpp of TensorRT-LLM 0.8",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="trt-llm-engine-world-size",
        code="failed-world-size",
        role=Role.CAUSE,
        needle=") != Runtime world size (",
        pattern=r"Engine world size \((?P<engine>\d{1,5})\) != Runtime world size \("
        r"(?P<runtime>\d{1,5})\)",
        meaning="The engine was built for {engine} processes, and {runtime} were started.",
        fix="Start as many processes as the engine was built for (`mpirun -n`).",
        example="AssertionError: Engine world size (2) != Runtime world size (1)",
        origin="recalled: tensorrt_llm/runtime of TensorRT-LLM 0.8",
        weight=0.95,
    ),
    Signature(
        id="attention-heads-indivisible",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="attention heads",
        pattern=r"(?:[Nn]umber of|[Nn]um) attention heads(?: \((?P<heads>\d{1,5})\))? must be "
        r"divisible by (?:the )?(?:tensor parallel size|tensor model parallel)",
        meaning="The model's attention heads cannot be divided among this number of GPUs.",
        fix=_SPLIT,
        example="ValueError: Total number of attention heads (28) must be divisible by tensor "
        "parallel size (8).",
        origin="recalled: vllm/config.py of vLLM 0.6",
        weight=0.85,
    ),
    Signature(
        id="parts-indivisible",
        code="failed-world-size",
        role=Role.CAUSE,
        needle=" is not divisible by ",
        pattern=r"^AssertionError: (?P<whole>\d{1,12}) is not divisible by (?P<parts>\d{1,6})$",
        meaning="{whole} cannot be divided among {parts} ranks.",
        fix=_SPLIT,
        example="AssertionError: 14 is not divisible by 4",
        origin="recalled: vllm/distributed/utils.py of vLLM 0.6 and Megatron-LM",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="model-parallel-size",
        code="failed-world-size",
        role=Role.CAUSE,
        needle=" doesn't match world size ",
        pattern=r"mp size (?P<parts>\d{1,5}) doesn't match world size (?P<world>\d{1,6})",
        meaning="The model is split into {parts} parts, and {world} ranks were started.",
        fix="Start as many ranks as there are parts.",
        example="AssertionError: Error: mp size 4 doesn't match world size 8",
        origin="recalled: deepspeed/inference of DeepSpeed 0.8",
        weight=0.85,
        needle_tells=False,
    ),
)
