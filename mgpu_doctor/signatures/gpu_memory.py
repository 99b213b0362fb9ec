"""GPU memory that ran out, as torch 1.0 to 2.13 reports it."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_SIZE = r"[\d.]{1,12} (?:bytes|KiB|MiB|GiB|TiB)"
_CAPACITY = (
    r"GPU (?P<device>\d{1,9}) has a total capaci?ty of (?P<capacity>" + _SIZE + r") of which "
    r"(?P<free>" + _SIZE + r") is free\.(?P<rest>.{0,600})"
)
"""`analysis.postmortem.device_memory_message` reads the rest and says what the numbers mean."""
_SHARED = (
    r"(?:Process \d{1,10} has [\d.]{1,12} [GT]iB memory in use\. .{0,300}?Including non-PyTorch "
    r"memory, this |Including non-PyTorch memory, this .{0,300}?Process \d{1,10} has "
    r"[\d.]{1,12} [GT]iB memory in use)"
)
"""torch calls its own process "this process", so any other process in the message shares the
device. In a container torch cannot identify its own process, and lists all by number."""
_SMALL = r"[\d.]{1,12} (?:bytes|KiB|MiB)"
_LARGE = r"[\d.]{1,12} (?:GiB|TiB)"
_IN_PIECES = r" is reserved by PyTorch but unallocated"
"""If a large amount is unallocated but allocating a small one failed, fragmentation is the
cause."""
_LESS = (
    "Halve the batch per rank (and accumulate gradients over two steps), use activation "
    "checkpointing, bf16 autocast, or shard the model with FSDP."
)
_MANY_OTHERS = (
    r"(?{}GPU 0 .{{60,100}}Process \d{{1,10}} has [\d.]{{1,12}} [MG]iB memory in use\. Process )"
)
_BLOCKING = "Run it again with `CUDA_LAUNCH_BLOCKING=1`: the traceback then names the real line."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="cuda-oom-fragmented",
        code="oom-fragmentation",
        role=Role.CAUSE,
        needle=" out of memory. Tried to allocate ",
        pattern=r"\b(?:CUDA|HIP) out of memory\. Tried to allocate (?P<requested>"
        + _SMALL
        + r")\. (?!.{0,400}?"
        + _SHARED
        + ")"
        + r"(?=.{0,600}? (?P<unallocated>"
        + _LARGE
        + ")"
        + _IN_PIECES
        + ")"
        + _CAPACITY,
        meaning="GPU {device} had no {requested} in one piece, although {unallocated} of what "
        "torch holds were unused, in pieces: memory is fragmented.",
        fix="Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` before the start, and keep "
        "sizes alike from step to step (pad to a few lengths). " + _LESS,
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 "
        "has a total capacity of 79.10 GiB of which 211.44 MiB is free. Including non-PyTorch "
        "memory, this process has 78.88 GiB memory in use. Of the allocated memory 68.12 GiB is "
        "allocated by PyTorch, and 9.27 GiB is reserved by PyTorch but unallocated. If reserved "
        "but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        origin="source: c10/cuda/CUDACachingAllocator.cpp of torch 2.12, with numbers of our own",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="cuda-oom-shared-device",
        code="oom-foreign-process",
        role=Role.CAUSE,
        needle=" out of memory. Tried to allocate ",
        pattern=r"\b(?:CUDA|HIP) out of memory\. Tried to allocate (?P<requested>"
        + _SIZE
        + r")\. (?=.{0,400}?"
        + _SHARED
        + ")"
        + _MANY_OTHERS.format("!")
        + _CAPACITY,
        meaning="GPU {device} ran out of memory, and another process holds a part of it: another "
        "job, or another rank of this one that uses the wrong device.",
        fix="Find the other process with `nvidia-smi --id={device}`. If it is a rank of this job, "
        "call `torch.cuda.set_device(local_rank)` before anything else and load with "
        "`map_location`; otherwise wait for it or choose another GPU.",
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
        "has a total capacity of 79.10 GiB of which 1.21 GiB is free. Process 41077 has 46.30 GiB "
        "memory in use. Including non-PyTorch memory, this process has 31.58 GiB memory in use. "
        "Of the allocated memory 30.41 GiB is allocated by PyTorch, and 212.90 MiB is reserved by "
        "PyTorch but unallocated.",
        origin="source: c10/cuda/CUDACachingAllocator.cpp of torch 2.12, with numbers of our own",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="cuda-oom-many-ranks",
        code="oom-rank0-pileup",
        role=Role.CAUSE,
        needle=" out of memory. Tried to allocate ",
        pattern=r"\b(?:CUDA|HIP) out of memory\. Tried to allocate (?P<requested>"
        + _SIZE
        + r")\. (?=.{0,400}?"
        + _SHARED
        + ")"
        + _MANY_OTHERS.format("=")
        + _CAPACITY,
        meaning="GPU {device} ran out of memory, and several processes that hold alike amounts "
        "share it: ranks of this job that all use it, or that touched it before they chose theirs.",
        fix="Call `torch.cuda.set_device(local_rank)` before anything else uses CUDA, and load "
        "checkpoints with `map_location='cpu'`. `nvidia-smi` lists the processes.",
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 "
        "has a total capacity of 79.10 GiB of which 118.44 MiB is free. Process 41077 has 4.10 "
        "GiB memory in use. Process 41078 has 4.10 GiB memory in use. Including non-PyTorch "
        "memory, this process has 70.80 GiB memory in use. Of the allocated memory 69.20 GiB is "
        "allocated by PyTorch, and 212.90 MiB is reserved by PyTorch but unallocated.",
        origin="source: c10/cuda/CUDACachingAllocator.cpp of torch 2.12, with numbers of our own",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="cuda-oom",
        code="oom-device",
        role=Role.CAUSE,
        needle=" out of memory. Tried to allocate ",
        pattern=r"\b(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?!.{0,400}?"
        + _SHARED
        + ")(?!"
        + _SMALL
        + r"\. .{0,600}? "
        + _LARGE
        + _IN_PIECES
        + r")(?P<requested>"
        + _SIZE
        + r")\. "
        + _CAPACITY,
        meaning="GPU {device} ({capacity}) ran out of memory when {requested} were asked for and "
        "{free} were free.",
        fix=_LESS,
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
        "has a total capacity of 79.10 GiB of which 911.44 MiB is free. Including non-PyTorch "
        "memory, this process has 78.20 GiB memory in use. Of the allocated memory 76.90 GiB is "
        "allocated by PyTorch, and 411.27 MiB is reserved by PyTorch but unallocated.",
        origin="source: c10/cuda/CUDACachingAllocator.cpp of torch 2.12, with numbers of our own",
        needle_tells=False,
        more_heads=(
            "CUDA out of memory. Tried to allocate",
            "HIP out of memory. Tried to allocate",
            "XPU out of memory. Tried to allocate",
        ),
    ),
    Signature(
        id="cuda-oom-old",
        code="oom-device",
        role=Role.CAUSE,
        needle=" total capacity; ",
        pattern=r"\b(?:CUDA|HIP) out of memory\. Tried to allocate (?P<requested>"
        + _SIZE
        + r") \(GPU (?P<device>\d+); (?P<capacity>"
        + _SIZE
        + r") total capacity; (?P<allocated>"
        + _SIZE
        + r") already allocated; (?P<free>"
        + _SIZE
        + r") free(?:; (?:(?P<reserved>"
        + _SIZE
        + r") reserved in total by PyTorch|(?P<unallocated>"
        + _SIZE
        + r") cached))?",
        meaning="GPU {device} ({capacity}) ran out of memory when {requested} were asked for and "
        "{free} were free.",
        fix=_LESS,
        example="RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB "
        "total capacity; 14.30 GiB already allocated; 10.75 MiB free; 14.62 GiB reserved in total "
        "by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to "
        "avoid fragmentation.",
        origin="source: c10/cuda/CUDACachingAllocator.cpp of torch 1.10",
    ),
    Signature(
        id="cuda-oom-async-allocator",
        code="oom-device",
        role=Role.CAUSE,
        needle="would exceed allowed memory",
        pattern=r"Allocation on device (?P<device>\d+) would exceed allowed memory\. \(out of "
        r"memory\)",
        meaning="GPU {device} ran out of memory (under the allocator cudaMallocAsync).",
        fix=_LESS,
        example="torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out "
        "of memory)",
        origin="source: c10/cuda/CUDAMallocAsyncAllocator.cpp of torch 2.12",
    ),
    Signature(
        id="cuda-oom-fraction",
        code="oom-device",
        role=Role.CAUSE,
        needle="Allocation was preemptively rejected",
        pattern=r"CUDA out of memory\. Allocation was preemptively rejected because it would "
        r"exceed per_process_memory_fraction limit",
        meaning="The process reached the share of the GPU's memory that "
        "`set_per_process_memory_fraction` allows it.",
        fix="Raise the fraction, if the rest of the memory is free. " + _LESS,
        example="torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected "
        "because it would exceed per_process_memory_fraction limit. Requested size: 2147483648",
        origin="source: c10/cuda/CUDACachingAllocator.cpp of torch 2.12",
    ),
    Signature(
        id="cuda-oom-context",
        code="oom-device",
        role=Role.CAUSE,
        needle=" error: out of memory",
        pattern=r"(?:CUDA|HIP)(?: driver)? error: out of memory",
        meaning="CUDA itself found no memory on the GPU, often already for its context: other "
        "processes fill the device.",
        fix="See with `nvidia-smi` who holds it (also processes left over from an earlier run). "
        "`CUDA_VISIBLE_DEVICES` chooses other GPUs; each rank must "
        "`torch.cuda.set_device(local_rank)` first.",
        example="RuntimeError: CUDA error: out of memory",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="cublas-allocation",
        code="oom-device",
        role=Role.CAUSE,
        needle="CUBLAS_STATUS_ALLOC_FAILED",
        pattern=r"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `(?P<call>\w+)",
        meaning="cuBLAS found no memory for its workspace ({call}): the GPU is full.",
        fix=_LESS + " If memory is free, an index error before it can look like this: " + _BLOCKING,
        example="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
        "`cublasCreate(handle)`",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.75,
    ),
    Signature(
        id="cublas-not-initialised",
        code="oom-device",
        role=Role.CAUSE,
        needle="CUBLAS_STATUS_NOT_INITIALIZED",
        pattern=r"CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `(?P<call>\w+)",
        meaning="cuBLAS could not start ({call}): usually because the GPU's memory is full, "
        "otherwise because of an error of a kernel before it.",
        fix="Look at the GPU's memory (`nvidia-smi`). "
        + _LESS
        + " If memory is free: "
        + _BLOCKING,
        example="RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
        "`cublasCreate(handle)`",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="cudnn-no-algorithm",
        code="oom-device",
        role=Role.CAUSE,
        needle="Unable to find a valid cuDNN algorithm",
        pattern=r"RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        meaning="cuDNN found no way to run a convolution in the memory that is left: usually the "
        "GPU is full, otherwise cuDNN does not fit torch.",
        fix="Look at the GPU's memory (`nvidia-smi`). " + _LESS,
        example="RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        origin="source: aten/src/ATen/native/cudnn/Conv_v7.cpp of torch 1.12",
        weight=0.6,
    ),
    Signature(
        id="cuda-oom-bare",
        code="oom-device",
        role=Role.CAUSE,
        needle="CUDA out of memory",
        pattern=r"(?:\w(?:Error|Exception)|^Error): CUDA out of memory\.?\s*$",
        meaning="A GPU's memory ran out.",
        fix=_LESS,
        example="RuntimeError: CUDA out of memory.",
        origin="made: an exception raised again with its first words alone",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="cuda-oom-cut",
        code="oom-device",
        role=Role.CAUSE,
        needle="CUDA out of m",
        pattern=r"\b(?:RuntimeError|OutOfMemoryError): CUDA out of m(?:e(?:m(?:or?)?)?)?$",
        meaning="A GPU's memory ran out; the text ends in the middle of the message.",
        fix=_LESS,
        example="RuntimeError: CUDA out of mem",
        origin="made: torch's message, cut in the middle",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="mps-oom",
        code="oom-device",
        role=Role.CAUSE,
        needle="MPS backend out of memory",
        pattern=r"MPS backend out of memory \(MPS allocated: (?P<allocated>[\d.]{1,12} [KMGT]?B)",
        meaning="The memory of Apple's GPU ran out; torch holds {allocated}.",
        fix=_LESS,
        example="RuntimeError: MPS backend out of memory (MPS allocated: 17.10 GB, other "
        "allocations: 384.00 MB, max allowed: 18.13 GB). Tried to allocate 1.00 GB on private "
        "pool.",
        origin="recalled: aten/src/ATen/mps/MPSAllocator.mm of torch 2.2",
    ),
    Signature(
        id="cuda-memory-allocation",
        code="oom-device",
        role=Role.CAUSE,
        needle="cudaErrorMemoryAllocation",
        pattern=r"\bcudaErrorMemoryAllocation:? out of memory",
        meaning="A CUDA library found no memory on the GPU.",
        fix=_LESS + " `nvidia-smi` shows who else holds memory.",
        example="  what():  parallel_for failed: cudaErrorMemoryAllocation: out of memory",
        origin="recalled: thrust/system/cuda/error.inl of CUDA 12",
    ),
    Signature(
        id="cuda-runtime-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \(2\) ?: out of memory",
        meaning="The GPU's memory is full.",
        fix="Use a smaller batch, activation checkpointing or sharding; `nvidia-smi` shows other "
        "processes on the GPU.",
        example="RuntimeError: cuda runtime error (2) : out of memory at "
        "aten/src/THC/generic/THCStorage.cu:66",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        needle_tells=False,
    ),
    Signature(
        id="thc-check-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="THCudaCheck FAIL file=",
        pattern=r"THCudaCheck FAIL file=\S{1,200} line=\d{1,6} error=(?:2) : ",
        meaning="A GPU's memory ran out.",
        fix="Halve the batch per rank, or see with `nvidia-smi` who else holds memory.",
        example="THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=2 : out "
        "of memory",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="torch-out-of-memory-type",
        code="oom-device",
        role=Role.CAUSE,
        needle="OutOfMemoryErr",
        pattern=r"^torch\.(?:cuda\.)?OutOfMemoryErr(?:or?)?:?\s*$",
        meaning="Allocating GPU memory failed; the message with the sizes is cut off.",
        fix="Halve the batch per rank, or see with `nvidia-smi` who else holds memory.",
        example="torch.cuda.OutOfMemoryError",
        origin="source: torch/cuda/__init__.py of torch 2.13",
        weight=0.85,
    ),
)
