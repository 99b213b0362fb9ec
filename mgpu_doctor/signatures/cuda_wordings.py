"""What old torch, other frameworks and other devices print of errors of CUDA, HIP and SYCL."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="cuda-runtime-assert",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:59|710)\) ?: ",
        meaning=(
            "A kernel's assertion failed: nearly always an index or a class label out of range."
        ),
        fix=(
            "Run with `CUDA_LAUNCH_BLOCKING=1`; check that labels are in 0..classes-1 and "
            "token ids below the vocabulary's size."
        ),
        example=(
            "RuntimeError: cuda runtime error (59) : device-side assert triggered at "
            "aten/src/THC/generic/THCTensorMath.cu:41"
        ),
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="cuda-runtime-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \(2\) ?: out of memory",
        meaning="The GPU's memory is full.",
        fix=(
            "Use a smaller batch, activation checkpointing or sharding; `nvidia-smi` shows "
            "other processes on the GPU."
        ),
        example=(
            "RuntimeError: cuda runtime error (2) : out of memory at "
            "aten/src/THC/generic/THCStorage.cu:66"
        ),
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="cuda-runtime-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:4|7[0-9]|700|71[4-9])\) ?: ",
        meaning="A kernel read or wrote memory that is not its own, or failed while running.",
        fix=(
            "Run with `CUDA_LAUNCH_BLOCKING=1` or `compute-sanitizer` to find the kernel; "
            "update its library."
        ),
        example=(
            "RuntimeError: cuda runtime error (77) : an illegal memory access was "
            "encountered at aten/src/THC/THCGeneral.cpp:50"
        ),
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="cuda-runtime-device",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:10|101|38|100|46)\) ?: ",
        meaning=(
            "The device number does not exist among the visible GPUs, or a GPU is not available."
        ),
        fix=(
            "Start as many ranks as there are GPUs in CUDA_VISIBLE_DEVICES; use "
            "`local_rank`, not `rank`, as device number."
        ),
        example=(
            "RuntimeError: cuda runtime error (10) : invalid device ordinal at "
            "torch/csrc/cuda/Module.cpp:37"
        ),
        origin="recalled: torch/csrc/cuda/Module.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="cuda-runtime-architecture",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:8|48|98|209)\) ?: ",
        meaning="This build has no kernels for this GPU.",
        fix="Install a build for this GPU's compute capability.",
        example=(
            "RuntimeError: cuda runtime error (48) : no kernel image is available for "
            "execution on the device at aten/src/THC/THCTensorCopy.cu:20"
        ),
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="driver-too-old-assertion",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="The NVIDIA driver on your system is too old",
        pattern=(
            r"^The NVIDIA driver on your system is too old \(found version "
            r"(?P<version>\d{1,9})\)"
        ),
        meaning="The driver (version {version}) is older than this torch build needs.",
        fix="Update the driver, or install a torch build for an older CUDA.",
        example="The NVIDIA driver on your system is too old (found version 9010).",
        origin="source: torch/cuda/__init__.py of torch 1.2",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="cuda-initialisation-error",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" error: initialization error",
        pattern=r"(?:CUDA|HIP) error: initialization error",
        meaning=(
            "CUDA cannot start in this process. The most common cause: it was used before "
            "the processes were forked, and a child cannot use the parent's context."
        ),
        fix=(
            "Start the processes with `spawn`, and touch no GPU (`torch.cuda…`, `.cuda()`) "
            "before that, also not in earlier notebook cells."
        ),
        example="RuntimeError: CUDA error: initialization error",
        origin="recalled: driver_types.h of CUDA 12",
        weight=0.75,
    ),
    Signature(
        id="notebook-used-cuda",
        code="failed-exception",
        role=Role.CAUSE,
        needle="To launch a multi-GPU training from your notebook",
        pattern=r"ValueError: To launch a multi-GPU training from your notebook, you need to ",
        meaning=(
            "The notebook used CUDA before it forked the training processes, so they cannot use it."
        ),
        fix=(
            "Restart the kernel; let no cell before `notebook_launcher` use `torch.cuda` or "
            "build an `Accelerator`."
        ),
        example=(
            "ValueError: To launch a multi-GPU training from your notebook, you need to "
            "avoid running any instruction"
        ),
        origin="source: accelerate/launchers.py of accelerate 0.30",
        weight=0.9,
    ),
    Signature(
        id="hip-check-failed",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="== hipSuccess",
        pattern=r"Check failed: \w{1,40} == hipSuccess \((?P<error>\d{1,5}) vs\. 0\)",
        meaning="A HIP call failed with code {error}.",
        fix=(
            "Run with `AMD_SERIALIZE_KERNEL=3` to find the kernel; check that the ROCm "
            "build fits this GPU."
        ),
        example=(
            "F ./tensorflow/core/util/gpu_launch_config.h:170] Check failed: err == "
            "hipSuccess (98 vs. 0)"
        ),
        origin="recalled: tensorflow/core/util/gpu_launch_config.h of TensorFlow 2.12",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="sycl-device-lost",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="_RESULT_ERROR_DEVICE_LOST",
        pattern=r"\b(?:UR|ZE)_RESULT_ERROR_DEVICE_LOST\b",
        meaning="The Intel GPU was lost: a kernel hung, or the driver reset the device.",
        fix=(
            "`dmesg | grep -i -e xe -e i915` shows the reset; update the GPU driver and firmware."
        ),
        example=(
            "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"
        ),
        origin="recalled: ur_api.h of oneAPI Unified Runtime",
        weight=0.8,
        needle_tells=False,
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
        pattern=(
            r"Out of memory error on GPU (?P<device>\d{1,4})\. Cannot allocate "
            r"(?P<size>[\d.]{1,20} ?[KMGT]?i?B)"
        ),
        meaning="Allocating {size} on GPU {device} failed.",
        fix="Use a smaller batch; `nvidia-smi` shows other processes on the GPU.",
        example=(
            "ResourceExhaustedError: Out of memory error on GPU 3. Cannot allocate "
            "256.000000MB memory on GPU 3, 31.2GB memory has been allocated"
        ),
        origin="recalled: paddle/fluid/memory/allocation/cuda_allocator.cc of Paddle 2.6",
        weight=0.9,
    ),
    Signature(
        id="cupy-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="OutOfMemoryError: Out of memory allocating ",
        pattern=r"OutOfMemoryError: Out of memory allocating (?P<bytes>[\d,]{1,30}) bytes",
        meaning="Allocating {bytes} bytes on the GPU failed.",
        fix=(
            "Use smaller arrays, or free CuPy's pool: "
            "`cupy.get_default_memory_pool().free_all_blocks()`."
        ),
        example=(
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,096,000 bytes "
            "(allocated so far: 8,192 bytes)."
        ),
        origin="recalled: cupy/cuda/memory.pyx of CuPy 13",
        weight=0.9,
    ),
    Signature(
        id="mpi-not-cuda-aware",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="CUDA-aware MPI support",
        pattern=r"CUDA tensor detected and the MPI used doesn't have CUDA-aware MPI support",
        meaning="The MPI backend got a tensor on the GPU, and this MPI cannot read GPU memory.",
        fix="Use the nccl backend for GPU tensors, or an MPI that is built with CUDA.",
        example=(
            "RuntimeError: CUDA tensor detected and the MPI used doesn't have CUDA-aware "
            "MPI support"
        ),
        origin="source: torch/csrc/distributed/c10d/ProcessGroupMPI.cpp of torch",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="invalid-device-id",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="Invalid device id",
        pattern=r"AssertionError: Invalid device id$",
        meaning="A GPU number was used that this process does not see.",
        fix="Compare `torch.cuda.device_count()` and CUDA_VISIBLE_DEVICES with the numbers that "
        "the "
        "script uses: they begin with 0 among the visible ones.",
        example="AssertionError: Invalid device id",
        origin="source: torch/cuda/__init__.py of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="cuda-illegal-address",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="cudaErrorIllegalAddress",
        pattern=r"\bcudaErrorIllegalAddress\b(?! ?\()",
        meaning="A GPU kernel accessed invalid memory.",
        fix="`CUDA_LAUNCH_BLOCKING=1` shows the line; `compute-sanitizer` names the kernel.",
        example='CUDA error at kernel.cu:120 code=700(cudaErrorIllegalAddress) "cudaDeviceSync()"',
        origin="recalled: helper_cuda.h of CUDA's samples",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="tf-kernel-crashed",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="rror polling for event status",
        pattern=r"[Ee]rror polling for event status: .{1,80}?CUDA_ERROR_(?P<error>ILLEGAL_ADDRESS|"
        r"LAUNCH_FAILED|MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION)",
        meaning="A GPU kernel of TensorFlow crashed ({error}).",
        fix="Look at custom operations and `dmesg | grep Xid`; a full GPU and a driver that does "
        "not "
        "fit do this, too.",
        example="Error polling for event status: failed to query event: CUDA_ERROR_LAUNCH_FAILED: "
        "unspecified launch failure",
        origin="recalled: tensorflow/stream_executor/cuda/cuda_event.cc of TensorFlow 2.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="container-needs-driver",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="unsatisfied condition: ",
        pattern=r"nvidia-container-cli: requirement error: unsatisfied condition: "
        r"(?P<condition>[\w<>=.]{1,40})",
        meaning="The image needs a newer driver ({condition}).",
        fix="Update the driver of the host, or use an image for an older CUDA.",
        example="nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, "
        "please "
        "update your driver to a newer version, or use an earlier cuda container",
        origin="recalled: libnvidia-container 1.17",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="driver-library-mismatch-tf",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle=" does not match DSO version ",
        pattern=r"kernel version (?P<kernel>[\d.]{3,20}) does not match DSO version "
        r"(?P<library>[\d.]{3,20})",
        meaning="The loaded kernel module ({kernel}) and the driver's library ({library}) are of "
        "different versions, so no GPU can be used.",
        fix="Reboot, or reload the module after a driver update; in a container mount the host's "
        "own libraries.",
        example="kernel version 440.33.1 does not match DSO version 450.51.5 -- cannot find "
        "working "
        "devices in this configuration",
        origin="recalled: cuda_diagnostics.cc of TensorFlow 2.4",
        severity="warning",
        weight=0.9,
    ),
    Signature(
        id="cublas-refused",
        code="failed-exception",
        role=Role.CAUSE,
        needle="CUDA error: CUBLAS_STATUS_",
        pattern=r"CUDA error: CUBLAS_STATUS_(?P<status>NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH) "
        r"when "
        r"calling `(?P<call>\w+)",
        meaning="cuBLAS refused a call ({call}, {status}): mostly libraries of two CUDA versions, "
        "a "
        "data type that the GPU lacks, or an index error before it.",
        fix="Look at `pip list | grep nvidia` and LD_LIBRARY_PATH for a second cuBLAS, and run "
        "once "
        "with `CUDA_LAUNCH_BLOCKING=1`.",
        example="RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm( "
        "handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="cudnn-architecture",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="CUDNN_STATUS_ARCH_MISMATCH",
        pattern=r"\bCUDNN_STATUS_ARCH_MISMATCH\b",
        meaning="cuDNN has no code for this GPU's generation.",
        fix="Install a torch whose cuDNN supports this GPU.",
        example="RuntimeError: cuDNN error: CUDNN_STATUS_ARCH_MISMATCH",
        origin="recalled: cudnn_graph.h of cuDNN 9",
        needle_tells=False,
    ),
    Signature(
        id="driver-combination",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="system has unsupported display driver / cuda driver",
        pattern=r"^(?:CUDA error: |Error 803: )system has unsupported display driver / cuda driver "
        r"combination",
        meaning="The container's CUDA compatibility library does not fit the driver of the host.",
        fix="Update the driver, or remove the `cuda-compat` package or its folder from "
        "LD_LIBRARY_PATH.",
        example="Error 803: system has unsupported display driver / cuda driver combination",
        origin="recalled: driver_types.h of CUDA 12",
        weight=0.9,
        needle_tells=False,
    ),
)
