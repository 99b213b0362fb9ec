"""What CUDA says through torch: kernels that failed, devices and drivers that do not fit."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_BLOCKING = "Run it again with `CUDA_LAUNCH_BLOCKING=1`: the traceback then names the real line."
_LABELS = (
    "Check that labels and token ids are between 0 and the number of classes or rows - 1 "
    "(`assert labels.max() < num_classes`); one batch on the CPU names the line."
)
_NEW_TORCH = (
    "Install a build of torch for this GPU and driver (pytorch.org/get-started); "
    "`torch.cuda.get_arch_list()` and `nvidia-smi` show what fits what."
)
_ASSERTION = r"(?<![\w.])(?P<file>[\w.]{1,200}\.cu):(?P<line>\d+):? [^`]{1,400}Assertion `"
"""How a device's assertion begins. A search begins at most once for each file name."""

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="cublas-failed",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="CUBLAS_STATUS_EXECUTION_FAILED",
        pattern=r"CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `(?P<call>\w+)",
        meaning="A matrix product on the GPU failed ({call}): usually an error of a kernel before "
        "it.",
        fix=_BLOCKING + " If it moves from run to run, test the GPU (`nvidia-smi -q`, `dcgmi diag "
        "-r 3`).",
        example="RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling "
        "`cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.7,
    ),
    Signature(
        id="cudnn-failed",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="cuDNN error: CUDNN_STATUS_",
        pattern=r"cuDNN error: CUDNN_STATUS_(?P<status>EXECUTION_FAILED\w*|INTERNAL_ERROR\w*|"
        r"MAPPING_ERROR|NOT_INITIALIZED)",
        meaning="cuDNN failed ({status}): often the GPU's memory is full, an error of a kernel "
        "before it, or a cuDNN that does not fit torch.",
        fix="Look at the GPU's memory first (`nvidia-smi`). "
        + _BLOCKING
        + " `python -m torch.utils.collect_env` shows a second cuDNN.",
        example="RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.7,
        needle_tells=False,
        more_heads=("CUDNN_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_MAPPING_ERROR"),
    ),
    Signature(
        id="assert-class-label",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="t >= 0 && t < n_classes` failed",
        pattern=_ASSERTION + r"t >= 0 && t < n_classes` failed",
        meaning="A label is negative or not below the number of classes.",
        fix="Make the last layer as wide as there are classes, count labels from 0, and "
        "give the loss `ignore_index` for padding. " + _LABELS,
        example="../aten/src/ATen/native/cuda/Loss.cu:240: nll_loss_forward_reduce_cuda_kernel_2d: "
        "block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        origin="source: aten/src/ATen/native/cuda/Loss.cu of torch 2.0",
        weight=0.97,
    ),
    Signature(
        id="assert-index",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="Assertion `",
        pattern=_ASSERTION + r"(?P<assertion>srcIndex < srcSelectDimSize"
        r"|(?=[^`]{0,80}\bindex\b)[^`]{1,205})` failed",
        meaning="An index is outside its tensor or embedding table ({assertion}).",
        fix=_LABELS,
        example="/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: "
        "block: [4,0,0], thread: [63,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        origin="source: aten/src/ATen/native/cuda/Indexing.cu of torch 2.4",
        weight=0.96,
    ),
    Signature(
        id="assert-probability",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="input_val >= zero && input_val <= one",
        pattern=_ASSERTION + r"input_val >= zero && input_val <= one` failed",
        meaning="Binary cross-entropy got a value outside 0 to 1 (or NaN).",
        fix="Use `binary_cross_entropy_with_logits` on the raw outputs, or put a sigmoid before "
        "the loss; check the outputs for NaN.",
        example="/pytorch/aten/src/ATen/native/cuda/Loss.cu:91: operator(): block: [0,0,0], "
        "thread: [3,0,0] Assertion `input_val >= zero && input_val <= one` failed.",
        origin="source: aten/src/ATen/native/cuda/Loss.cu of torch 2.12",
        weight=0.96,
    ),
    Signature(
        id="device-assert",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle=" error: device-side assert triggered",
        pattern=r"(?:CUDA|HIP) error: device-side assert triggered",
        meaning="A check inside a GPU kernel failed: usually a label or an index out of range. The "
        "traceback may name a later line.",
        fix=_LABELS + " " + _BLOCKING,
        example="torch.AcceleratorError: CUDA error: device-side assert triggered",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("device-side assert triggered",),
    ),
    Signature(
        id="illegal-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle=" error: an illegal ",
        pattern=r"(?:CUDA|HIP) error: an illegal (?P<what>memory access|instruction) was "
        r"encountered",
        meaning="A kernel made an illegal {what} on the GPU: a bug in a custom kernel or "
        "extension, an index out of range, or failing hardware.",
        fix=_BLOCKING + " `compute-sanitizer --tool memcheck python …` names the kernel; leave "
        "`torch.compile` and custom kernels out once to narrow it down.",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=(
            "an illegal memory access was encountered",
            "an illegal instruction was encountered",
        ),
    ),
    Signature(
        id="launch-failure",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="CUDA error: ",
        pattern=r"CUDA error: (?P<what>unspecified launch failure|misaligned address|hardware "
        r"stack error|invalid program counter|operation not supported on global/shared address "
        r"space|the launch timed out and was terminated)",
        meaning="A GPU kernel failed ({what}): a bug in a kernel or extension, or failing "
        "hardware.",
        fix=_BLOCKING + " Look for `NVRM: Xid` lines in `dmesg`; `compute-sanitizer python …` "
        "names the kernel.",
        example="RuntimeError: CUDA error: unspecified launch failure",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED"),
    ),
    Signature(
        id="cuda-ecc",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle="uncorrectable ECC error encountered",
        pattern=r"CUDA error: uncorrectable ECC error encountered",
        meaning="The GPU's memory returned data that cannot be corrected: the hardware failed "
        "under this rank.",
        fix="Take the job off this GPU and go on from the last checkpoint elsewhere. `nvidia-smi "
        "-q -d ECC,ROW_REMAPPER` names it; reset it, and have it replaced if it happens again.",
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        weight=0.97,
        more_heads=("CUDA_ERROR_ECC_UNCORRECTABLE",),
    ),
    Signature(
        id="cuda-nvlink-error",
        code="nvlink-down",
        role=Role.CAUSE,
        needle="CUDA error: ",
        pattern=r"CUDA error: (?P<what>uncorrectable NVLink error detected during the "
        r"execution|Invalid access of peer GPU memory over nvlink or a hardware error)",
        meaning="A transfer over NVLink failed ({what}).",
        fix="Drain the node and have the link or GPU checked. `nvidia-smi nvlink --errorcounters` "
        "and `dmesg | grep Xid` (74) name the link.",
        example="RuntimeError: CUDA error: uncorrectable NVLink error detected during the "
        "execution",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        weight=0.95,
    ),
    Signature(
        id="peer-access",
        code="failed-peer-to-peer",
        role=Role.CAUSE,
        needle="CUDA error: peer access ",
        pattern=r"CUDA error: peer access (?P<what>is not supported between these two devices|is "
        r"already enabled|has not been enabled)",
        meaning="Two GPUs could not reach each other's memory (peer access {what}).",
        fix="See with `nvidia-smi topo -p2p r` which pairs may. In virtual machines and with the "
        "IOMMU on, peer access is off: `NCCL_P2P_DISABLE=1` lets NCCL go another way.",
        example="RuntimeError: CUDA error: peer access is not supported between these two devices",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("peer access is not supported between these two devices",),
    ),
    Signature(
        id="invalid-device-ordinal",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle=" error: invalid device ordinal",
        pattern=r"(?:CUDA|HIP) error: invalid device ordinal",
        meaning="A GPU number was used that this process does not see: more ranks on the host than "
        "GPUs, the global rank taken for the local one, or CUDA_VISIBLE_DEVICES hides it.",
        fix="Use `int(os.environ['LOCAL_RANK'])` for the device, and `--nproc-per-node` no larger "
        "than `nvidia-smi -L | wc -l`; numbers count within CUDA_VISIBLE_DEVICES, from 0.",
        example="torch.AcceleratorError: CUDA error: invalid device ordinal",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("invalid device ordinal",),
    ),
    Signature(
        id="device-busy",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle=" busy or unavailable",
        pattern=r"CUDA error: (?:all )?CUDA-capable device(?:\(s\) is/are|s are) busy or "
        r"unavailable",
        meaning="The GPU takes no further process: it is in exclusive mode and in use, or being "
        "reset.",
        fix="Give each rank a GPU of its own (`torch.cuda.set_device(local_rank)`). `nvidia-smi "
        "--query-gpu=index,compute_mode --format=csv` and `nvidia-smi` show mode and user.",
        example="RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("devices are busy or unavailable",),
    ),
    Signature(
        id="no-cuda-gpus",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="No CUDA GPUs are available",
        pattern=r"RuntimeError: No CUDA GPUs are available",
        meaning="The script asked for a GPU, and this process sees none.",
        fix="See with `nvidia-smi -L` and `echo $CUDA_VISIBLE_DEVICES` what there is where the "
        "rank runs. Under Slurm ask for GPUs (`--gres=gpu:N`), in Docker start with `--gpus all`.",
        example="RuntimeError: No CUDA GPUs are available",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12",
    ),
    Signature(
        id="torch-without-cuda",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="Torch not compiled with CUDA enabled",
        pattern=r"AssertionError: Torch not compiled with CUDA enabled",
        meaning="The script asks for CUDA, and the torch that is installed is built for CPUs only.",
        fix="Install a CUDA build of torch (pytorch.org/get-started), or choose the device by "
        "`torch.cuda.is_available()`.",
        example="AssertionError: Torch not compiled with CUDA enabled",
        origin="made: torch.zeros(1, device='cuda') with a CPU build, torch 2.13",
    ),
    Signature(
        id="driver-missing",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="Found no NVIDIA driver on your system",
        pattern=r"(?:^|(?:Runtime|Assertion)Error: ?)Found no NVIDIA driver on your system",
        meaning="CUDA was asked for, and no NVIDIA driver is loaded here: no driver, a container "
        "without `--gpus`, or a node without GPUs.",
        fix="Check that `nvidia-smi` works where the rank runs. In Docker start with `--gpus all` "
        "(NVIDIA Container Toolkit); under Slurm ask for a GPU node.",
        example="RuntimeError: Found no NVIDIA driver on your system. Please check that you have "
        "an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12",
        needle_tells=False,
    ),
    Signature(
        id="driver-too-old",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="The NVIDIA driver on your system is too old",
        pattern=r"RuntimeError: The NVIDIA driver on your system is too old \(found version "
        r"(?P<version>\d+)\)",
        meaning="The driver (for CUDA {version}) is older than the CUDA that torch was built with.",
        fix="Update the driver, or install torch built for an older CUDA "
        "(pytorch.org/get-started); `nvidia-smi` shows the newest CUDA that the driver can.",
        example="RuntimeError: The NVIDIA driver on your system is too old (found version 11040). "
        "Please update your GPU driver by downloading and installing a new version from the URL: "
        "http://www.nvidia.com/Download/index.aspx",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12",
        needle_tells=False,
    ),
    Signature(
        id="driver-insufficient",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="driver version is insufficient for CUDA runtime version",
        pattern=r"CUDA driver version is insufficient for CUDA runtime version",
        meaning="The driver is older than the CUDA runtime that a library here was built with.",
        fix="Update the driver, or install builds for an older CUDA; `nvidia-smi` shows the newest "
        "CUDA that the driver can.",
        example="RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime "
        "version",
        origin="source: CUDA 13's cudaGetErrorString",
    ),
    Signature(
        id="driver-initialisation",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="CUDA driver initialization failed",
        pattern=r"RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu",
        meaning="The NVIDIA driver is there but did not start: it was updated without a restart, "
        "the device files are missing, or the GPU fell out.",
        fix="Read what `nvidia-smi` says, restart after a driver update, and look for `NVRM: Xid` "
        "in `dmesg`.",
        example="RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12",
    ),
    Signature(
        id="cuda-unexpected-count",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="Unexpected error from cudaGetDeviceCount()",
        pattern=r"RuntimeError: Unexpected error from cudaGetDeviceCount\(\).{0,200}?Error "
        r"(?P<error>\d{1,9}): (?P<what>.{1,100})",
        meaning="CUDA could not count the GPUs (error {error}, {what}).",
        fix="Act by the number. With 802 start the fabric manager (`systemctl start "
        "nvidia-fabricmanager`, HGX hosts); with 803 or 804 driver and CUDA libraries do not fit: "
        "restart after an update. Else `nvidia-smi` tells more.",
        example="RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
        "functions before calling NumCudaDevices() that might have already set an error? Error "
        "802: system not yet initialized",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        needle_tells=False,
    ),
    Signature(
        id="no-kernel-image",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="no kernel image is available for execution on the device",
        pattern=r"CUDA error: no kernel image is available for execution on the device",
        meaning="torch (or an extension) was built without code for this GPU's generation.",
        fix=_NEW_TORCH + " Rebuild extensions with TORCH_CUDA_ARCH_LIST set.",
        example="torch.AcceleratorError: CUDA error: no kernel image is available for execution "
        "on the device",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("device kernel image is invalid",),
    ),
    Signature(
        id="flash-attention-gpu",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="FlashAttention only supports Ampere GPUs",
        pattern=r"RuntimeError: FlashAttention only supports Ampere GPUs or newer",
        meaning="FlashAttention has no kernel for this GPU: it needs compute capability 8.0 or "
        "more.",
        fix="Use torch's own attention (`attn_implementation='sdpa'`), or GPUs of the Ampere "
        "generation or newer.",
        example="RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        origin="source: csrc/flash_attn/flash_api.cpp of FlashAttention 2",
    ),
    Signature(
        id="unsupported-ptx",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="PTX was compiled with an unsupported toolchain",
        pattern=r"CUDA error: the provided PTX was compiled with an unsupported toolchain",
        meaning="A kernel was built with a newer CUDA than the driver understands.",
        fix="Update the driver, or rebuild the extension with an older CUDA toolkit. " + _NEW_TORCH,
        example="RuntimeError: CUDA error: the provided PTX was compiled with an unsupported "
        "toolchain.",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
    ),
    Signature(
        id="architecture-not-in-build",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="is not compatible with the current PyTorch installation",
        pattern=r" with CUDA capability (?P<architecture>\w{1,20}) is not compatible with the "
        r"current PyTorch installation",
        meaning="This torch is built without code for the GPU's generation ({architecture}).",
        fix=_NEW_TORCH,
        example="NVIDIA H100 PCIe with CUDA capability sm_90 is not compatible with the current "
        "PyTorch installation.",
        origin="source: torch/cuda/__init__.py of torch 2.8",
        severity="warning",
    ),
)
