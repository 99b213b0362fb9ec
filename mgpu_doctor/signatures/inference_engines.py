"""Engines that run models on several GPUs: vLLM, SGLang, TensorRT-LLM and llama.cpp; and what
Caffe, darknet and MXNet print where CUDA fails."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LESS = "Use a smaller batch, shorter sequences, quantised weights, or more GPUs for the model."
_SPLIT = "Choose a number of GPUs that divides it."


def _engine(
    name: str,
    code: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str = _LESS,
    role: Role = Role.CAUSE,
    weight: float = 0.85,
    needle_tells: bool = True,
) -> Signature:
    """A failure that the engine itself names."""
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
        needle_tells=needle_tells,
    )


SIGNATURES: tuple[Signature, ...] = (
    _engine(
        "vllm-no-cache-memory",
        "oom-device",
        "No available memory for the cache blocks",
        r"No available memory for the cache blocks",
        meaning="The model leaves no GPU memory for the engine's cache.",
        fix="Raise `gpu_memory_utilization`, lower `max_model_len`, or use more GPUs "
        "(`tensor_parallel_size`).",
        example="ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        origin="recalled: vllm/worker of vLLM 0.6",
    ),
    _engine(
        "vllm-cache-too-small",
        "oom-device",
        "larger than the maximum number of tokens that can be stored in KV cache",
        r"larger than the maximum number of tokens that can be stored in KV cache",
        meaning="The GPU memory that is left for the engine's cache holds not even one sequence of "
        "the model's length.",
        fix="Lower `max_model_len`, raise `gpu_memory_utilization`, or use more GPUs.",
        example="ValueError: The model's max seq len (32768) is larger than the maximum number of "
        "tokens that can be stored in KV cache (20000).",
        origin="recalled: vllm/worker of vLLM 0.6",
    ),
    _engine(
        "vllm-memory-taken",
        "oom-device",
        "Free memory on device",
        r"Free memory on device .{0,12}\((?P<free>[\d.]{1,10})/(?P<total>[\d.]{1,10}) GiB\) on "
        r"startup is less than desired GPU memory utilization",
        meaning="Of the GPU's {total} GiB only {free} GiB are free: another process holds the "
        "rest.",
        fix="`nvidia-smi` shows who; end it, choose another GPU, or lower "
        "`gpu_memory_utilization`.",
        example="ValueError: Free memory on device (10.1/23.6 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 21.3 GiB).",
        origin="recalled: vllm/v1/worker of vLLM 0.8",
    ),
    _engine(
        "sglang-memory",
        "oom-device",
        "Not enough memory. Please try to increase --mem-fraction-static",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        meaning="The model leaves no GPU memory for the engine's cache.",
        fix="Raise `--mem-fraction-static`, or use more GPUs (`--tp`).",
        example="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        origin="recalled: python/sglang/srt of SGLang 0.4",
    ),
    _engine(
        "engine-cuda-malloc-failed",
        "oom-device",
        "alloc failed: out of memory",
        r"\b(?:cuda|hip)Malloc failed: out of memory",
        meaning="Allocating GPU memory failed.",
        example="ggml_backend_cuda_buffer_type_alloc_buffer: allocating 12000.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
        origin="recalled: ggml-cuda.cu of llama.cpp and pooled_storage_manager.h of MXNet 1.9",
        needle_tells=False,
    ),
    _engine(
        "trt-llm-out-of-memory",
        "oom-device",
        "CUDA runtime error in ",
        r"CUDA runtime error in .{1,160}: out of memory",
        meaning="Allocating GPU memory failed.",
        example="[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, "
        "mMemPool->getPool(), mCudaStream->get()): out of memory",
        origin="recalled: cpp/tensorrt_llm of TensorRT-LLM 0.8",
        needle_tells=False,
    ),
    _engine(
        "trt-out-of-memory",
        "oom-device",
        "OutOfMemory",
        r"Error Code 2: OutOfMemory\b",
        meaning="TensorRT ran out of GPU memory.",
        fix="Lower the workspace and the largest batch of the profile.",
        example="[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::127] Error Code 2: "
        "OutOfMemory (no further information)",
        origin="recalled: the messages of TensorRT 8",
        needle_tells=False,
    ),
    _engine(
        "trt-runtime-out-of-memory",
        "oom-device",
        "Cuda Runtime (out of memory)",
        r"\bCuda Runtime \(out of memory\)",
        meaning="TensorRT ran out of GPU memory.",
        fix="Lower the workspace and the largest batch of the profile.",
        example="[TRT] [E] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out "
        "of memory)",
        origin="recalled: the messages of TensorRT 8",
    ),
    _engine(
        "torch-out-of-memory-type",
        "oom-device",
        "OutOfMemoryError",
        r"^torch\.(?:cuda\.)?OutOfMemoryError:?\s*$",
        meaning="Allocating GPU memory failed; the message with the sizes is cut off.",
        fix="Halve the batch per rank, or see with `nvidia-smi` who else holds memory.",
        example="torch.cuda.OutOfMemoryError",
        origin="source: torch/cuda/__init__.py of torch 2.13",
        needle_tells=False,
    ),
    _engine(
        "cublas-resources",
        "oom-device",
        "cublas runtime error : resource allocation failed",
        r"cublas runtime error : resource allocation failed",
        meaning="cuBLAS found no memory on the GPU.",
        fix="Halve the batch per rank, or see with `nvidia-smi` who else holds memory.",
        example="RuntimeError: cublas runtime error : resource allocation failed at "
        "/pytorch/aten/src/THC/THCGeneral.cpp:216",
        origin="recalled: aten/src/THC of torch 1.2",
    ),
    _engine(
        "cuda-numbered-out-of-memory",
        "oom-device",
        ": out of memory",
        r"\bCUDA [Ee]rror(?: 2 at \S{1,160}|):? out of memory: (?:File exists|Resource temporarily|"
        r"No such file|Success)|\bCUDA error 2 at \S{1,160} out of memory",
        meaning="Allocating GPU memory failed.",
        example="CUDA error 2 at ggml-cuda.cu:5509: out of memory",
        origin="recalled: ggml-cuda.cu of llama.cpp and src/cuda.c of darknet",
        weight=0.8,
        needle_tells=False,
    ),
    _engine(
        "caffe-out-of-memory",
        "oom-device",
        "== cudaSuccess",
        r"Check failed: \w{1,10} == cudaSuccess.{0,40}?\(2 vs\. 0\) {1,3}out of memory|Check "
        r"failed: "
        r"\w{1,10} == cudaSuccess.{0,60}? out of memory",
        meaning="Allocating GPU memory failed.",
        example="F0101 10:10:10.1 4711 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. "
        "0)  out of memory",
        origin="recalled: src/caffe/syncedmem.cpp of Caffe 1",
        needle_tells=False,
    ),
    _engine(
        "trt-llm-world-size",
        "failed-world-size",
        "Assertion failed: mpiSize == ",
        r"Assertion failed: mpiSize == tp \* pp",
        meaning="The number of MPI processes is not the product of tensor and pipeline "
        "parallelism.",
        fix="Start as many processes as the engine was built for (`mpirun -n`).",
        example="[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp "
        "(/src/tensorrt_llm/runtime/worldConfig.cpp:99)",
        origin="recalled: cpp/tensorrt_llm/runtime/worldConfig.cpp of TensorRT-LLM 0.8",
        weight=0.95,
        needle_tells=False,
    ),
    _engine(
        "trt-llm-engine-world-size",
        "failed-world-size",
        ") != Runtime world size (",
        r"Engine world size \((?P<engine>\d{1,5})\) != Runtime world size \((?P<runtime>\d{1,5})\)",
        meaning="The engine was built for {engine} processes, and {runtime} were started.",
        fix="Start as many processes as the engine was built for (`mpirun -n`).",
        example="AssertionError: Engine world size (2) != Runtime world size (1)",
        origin="recalled: tensorrt_llm/runtime of TensorRT-LLM 0.8",
        weight=0.95,
    ),
    _engine(
        "attention-heads-indivisible",
        "failed-world-size",
        "attention heads",
        r"(?:[Nn]umber of|[Nn]um) attention heads(?: \((?P<heads>\d{1,5})\))? must be divisible by "
        r"(?:the )?(?:tensor parallel size|tensor model parallel)",
        meaning="The model's attention heads cannot be divided among so many GPUs.",
        fix=_SPLIT,
        example="ValueError: Total number of attention heads (28) must be divisible by tensor "
        "parallel size (8).",
        origin="recalled: vllm/config.py of vLLM 0.6",
        needle_tells=False,
    ),
    _engine(
        "parts-indivisible",
        "failed-world-size",
        " is not divisible by ",
        r"^AssertionError: (?P<whole>\d{1,12}) is not divisible by (?P<parts>\d{1,6})$",
        meaning="{whole} cannot be divided among {parts} ranks.",
        fix=_SPLIT,
        example="AssertionError: 14 is not divisible by 4",
        origin="recalled: vllm/distributed/utils.py of vLLM 0.6 and Megatron-LM",
        weight=0.7,
        needle_tells=False,
    ),
    _engine(
        "model-parallel-size",
        "failed-world-size",
        " doesn't match world size ",
        r"mp size (?P<parts>\d{1,5}) doesn't match world size (?P<world>\d{1,6})",
        meaning="The model is split into {parts} parts, and {world} ranks were started.",
        fix="Start as many ranks as there are parts.",
        example="AssertionError: Error: mp size 4 doesn't match world size 8",
        origin="recalled: deepspeed/inference of DeepSpeed 0.8",
        needle_tells=False,
    ),
    _engine(
        "consumer-card-peer-to-peer",
        "failed-peer-to-peer",
        "support faster communication broadband via P2P or IB",
        r"support faster communication broadband via P2P or IB",
        meaning="These GPUs cannot reach each other's memory directly, and Accelerate refuses to "
        "go on as long as NCCL would try.",
        fix="`export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1`, or start with `accelerate launch`.",
        example="NotImplementedError: Using RTX 4000 series doesn't support faster communication "
        "broadband via P2P or IB.",
        origin="source: accelerate/state.py of Accelerate 1",
    ),
    _engine(
        "bfloat16-unsupported",
        "failed-no-kernel-image",
        "Bfloat16 is only supported on GPUs with compute capability",
        r"Bfloat16 is only supported on GPUs with compute capability of at least",
        meaning="This GPU is too old for bfloat16.",
        fix="Use float16 (`--dtype half`).",
        example="ValueError: Bfloat16 is only supported on GPUs with compute capability of at "
        "least "
        "8.0. Your Tesla V100-SXM2-32GB GPU has compute capability 7.0.",
        origin="recalled: vllm/worker/worker.py of vLLM 0.6",
    ),
)
