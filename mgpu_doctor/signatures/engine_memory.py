"""GPU memory that ran out, as inference engines and other frameworks report it."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LESS = "Use a smaller batch, shorter sequences, quantised weights, or more GPUs for the model."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="vllm-no-cache-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="No available memory for the cache blocks",
        pattern=r"No available memory for the cache blocks",
        meaning="The model leaves no GPU memory for the engine's cache.",
        fix="Raise `gpu_memory_utilization`, lower `max_model_len`, or use more GPUs "
        "(`tensor_parallel_size`).",
        example="ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        origin="recalled: vllm/worker of vLLM 0.6",
        weight=0.85,
    ),
    Signature(
        id="vllm-cache-too-small",
        code="oom-device",
        role=Role.CAUSE,
        needle="larger than the maximum number of tokens that can be stored in KV cache",
        pattern=r"larger than the maximum number of tokens that can be stored in KV cache",
        meaning="The GPU memory that is left for the engine's cache holds not even one sequence "
        "of the model's length.",
        fix="Lower `max_model_len`, raise `gpu_memory_utilization`, or use more GPUs.",
        example="ValueError: The model's max seq len (32768) is larger than the maximum number of "
        "tokens that can be stored in KV cache (20000).",
        origin="recalled: vllm/worker of vLLM 0.6",
        weight=0.85,
    ),
    Signature(
        id="vllm-memory-taken",
        code="oom-device",
        role=Role.CAUSE,
        needle="Free memory on device",
        pattern=r"Free memory on device .{0,12}\((?P<free>[\d.]{1,10})/(?P<total>[\d.]{1,10}) "
        r"GiB\) on startup is less than desired GPU memory utilization",
        meaning="Of the GPU's {total} GiB only {free} GiB are free: another process holds the "
        "rest.",
        fix="`nvidia-smi` shows who; end it, choose another GPU, or lower "
        "`gpu_memory_utilization`.",
        example="ValueError: Free memory on device (10.1/23.6 GiB) on startup is less than "
        "desired GPU memory utilization (0.9, 21.3 GiB).",
        origin="recalled: vllm/v1/worker of vLLM 0.8",
        weight=0.85,
    ),
    Signature(
        id="sglang-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="Not enough memory. Please try to increase --mem-fraction-static",
        pattern=r"Not enough memory\. Please try to increase --mem-fraction-static",
        meaning="The model leaves no GPU memory for the engine's cache.",
        fix="Raise `--mem-fraction-static`, or use more GPUs (`--tp`).",
        example="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        origin="recalled: python/sglang/srt of SGLang 0.4",
        weight=0.85,
    ),
    Signature(
        id="engine-cuda-malloc-failed",
        code="oom-device",
        role=Role.CAUSE,
        needle="alloc failed: out of memory",
        pattern=r"\b(?:cuda|hip)Malloc failed: out of memory",
        meaning="Allocating GPU memory failed.",
        fix=_LESS,
        example="ggml_backend_cuda_buffer_type_alloc_buffer: allocating 12000.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
        origin="recalled: ggml-cuda.cu of llama.cpp and pooled_storage_manager.h of MXNet 1.9",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="trt-llm-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="CUDA runtime error in ",
        pattern=r"CUDA runtime error in .{1,160}: out of memory",
        meaning="Allocating GPU memory failed.",
        fix=_LESS,
        example="[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, "
        "mMemPool->getPool(), mCudaStream->get()): out of memory",
        origin="recalled: cpp/tensorrt_llm of TensorRT-LLM 0.8",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="trt-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="OutOfMemory",
        pattern=r"Error Code 2: OutOfMemory\b",
        meaning="TensorRT ran out of GPU memory.",
        fix="Lower the workspace and the largest batch of the profile.",
        example="[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::127] Error Code 2: "
        "OutOfMemory (no further information)",
        origin="recalled: the messages of TensorRT 8",
        weight=0.85,
    ),
    Signature(
        id="trt-runtime-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="Cuda Runtime (out of memory)",
        pattern=r"\bCuda Runtime \(out of memory\)",
        meaning="TensorRT ran out of GPU memory.",
        fix="Lower the workspace and the largest batch of the profile.",
        example="[TRT] [E] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime "
        "(out of memory)",
        origin="recalled: the messages of TensorRT 8",
        weight=0.85,
    ),
    Signature(
        id="cublas-resources",
        code="oom-device",
        role=Role.CAUSE,
        needle="cublas runtime error : resource allocation failed",
        pattern=r"cublas runtime error : resource allocation failed",
        meaning="cuBLAS found no memory on the GPU.",
        fix="Halve the batch per rank, or see with `nvidia-smi` who else holds memory.",
        example="RuntimeError: cublas runtime error : resource allocation failed at "
        "/pytorch/aten/src/THC/THCGeneral.cpp:216",
        origin="recalled: aten/src/THC of torch 1.2",
        weight=0.85,
    ),
    Signature(
        id="cuda-numbered-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle=": out of memory",
        pattern=r"\bCUDA [Ee]rror(?: 2 at \S{1,160}|):? out of memory: (?:File exists|Resource "
        r"temporarily|No such file|Success)|\bCUDA error 2 at \S{1,160} out of memory",
        meaning="Allocating GPU memory failed.",
        fix=_LESS,
        example="CUDA error 2 at ggml-cuda.cu:5509: out of memory",
        origin="recalled: ggml-cuda.cu of llama.cpp and src/cuda.c of darknet",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="caffe-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="== cudaSuccess",
        pattern=r"Check failed: \w{1,10} == cudaSuccess.{0,40}?\(2 vs\. 0\) {1,3}out of memory|"
        r"Check failed: \w{1,10} == cudaSuccess.{0,60}? out of memory",
        meaning="Allocating GPU memory failed.",
        fix=_LESS,
        example="F0101 10:10:10.1 4711 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 "
        "vs. 0)  out of memory",
        origin="recalled: src/caffe/syncedmem.cpp of Caffe 1",
        weight=0.85,
    ),
    Signature(
        id="sycl-out-of-resources",
        code="oom-device",
        role=Role.CAUSE,
        needle="ERROR_OUT_OF_",
        pattern=r"\b(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)\b",
        meaning="The Intel GPU has no memory or no other resource left.",
        fix="Use a smaller batch; `xpu-smi dump -m 18` shows the memory of each GPU.",
        example="RuntimeError: UR error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
        origin="recalled: ur_api.h of oneAPI Unified Runtime",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="paddle-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="Out of memory error on GPU ",
        pattern=r"Out of memory error on GPU (?P<device>\d{1,4})\. Cannot allocate "
        r"(?P<size>[\d.]{1,20} ?[KMGT]?i?B)",
        meaning="Allocating {size} on GPU {device} failed.",
        fix="Use a smaller batch; `nvidia-smi` shows other processes on the GPU.",
        example="ResourceExhaustedError: Out of memory error on GPU 3. Cannot allocate "
        "256.000000MB memory on GPU 3, 31.2GB memory has been allocated",
        origin="recalled: paddle/fluid/memory/allocation/cuda_allocator.cc of Paddle 2.6",
    ),
    Signature(
        id="cupy-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="OutOfMemoryError: Out of memory allocating ",
        pattern=r"OutOfMemoryError: Out of memory allocating (?P<bytes>[\d,]{1,30}) bytes",
        meaning="Allocating {bytes} bytes on the GPU failed.",
        fix="Use smaller arrays, or free CuPy's pool: "
        "`cupy.get_default_memory_pool().free_all_blocks()`.",
        example="cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,096,000 bytes "
        "(allocated so far: 8,192 bytes).",
        origin="recalled: cupy/cuda/memory.pyx of CuPy 13",
    ),
)
