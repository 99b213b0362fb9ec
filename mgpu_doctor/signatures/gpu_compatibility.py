"""Drivers, CUDA libraries and compiled code that do not fit each other or the GPU."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_NEW_TORCH = (
    "Install a build of torch for this GPU and driver (pytorch.org/get-started); "
    "`torch.cuda.get_arch_list()` and `nvidia-smi` show what fits what."
)

SIGNATURES: tuple[Signature, ...] = (
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
        id="driver-too-old-assertion",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="The NVIDIA driver on your system is too old",
        pattern=r"^The NVIDIA driver on your system is too old \(found version "
        r"(?P<version>\d{1,9})\)",
        meaning="The driver (version {version}) is older than this torch build needs.",
        fix="Update the driver, or install a torch build for an older CUDA.",
        example="The NVIDIA driver on your system is too old (found version 9010).",
        origin="source: torch/cuda/__init__.py of torch 1.2",
        needle_tells=False,
    ),
    Signature(
        id="driver-too-old-warning",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="CUDA initialization: ",
        pattern=r"UserWarning: CUDA initialization: The NVIDIA driver on your system is too old "
        r"\(found version (?P<version>\d{1,9})\)",
        meaning="The driver (version {version}) is older than this torch build needs, so torch "
        "does not use the GPUs.",
        fix="Update the driver, or install a torch build for an older CUDA.",
        example="/venv/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: The NVIDIA "
        "driver on your system is too old (found version 10020). Please update your GPU driver",
        origin="source: torch/csrc/cuda of torch 2.13",
        severity="info",
    ),
    Signature(
        id="driver-insufficient",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="driver version is insufficient for CUDA runtime version",
        pattern=r"CUDA driver version is insufficient for CUDA runtime version",
        meaning="The driver is older than the CUDA runtime that a library here was built with.",
        fix="Update the driver, or install builds for an older CUDA; `nvidia-smi` shows the "
        "newest CUDA that the driver can.",
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
        "the device files are missing, or the GPU no longer responds.",
        fix="Read what `nvidia-smi` says, restart after a driver update, and look for `NVRM: Xid` "
        "in `dmesg`.",
        example="RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12",
    ),
    Signature(
        id="driver-initialisation-warning",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="CUDA initialization: ",
        pattern=r"UserWarning: CUDA initialization: (?:CUDA driver initialization failed|"
        r"Unexpected error from cudaGetDeviceCount)",
        meaning="The driver could not be initialised, so torch does not use the GPUs.",
        fix="`nvidia-smi` must work; driver, container and Fabric Manager must fit together.",
        example="UserWarning: CUDA initialization: CUDA driver initialization failed, you might "
        "not have a CUDA gpu.",
        origin="source: strings in the library of torch 2.13",
        severity="info",
        weight=0.8,
    ),
    Signature(
        id="driver-module-mismatch",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="NVRM: API mismatch: ",
        pattern=r"NVRM: API mismatch: the client has (?:the )?version (?P<version>[\d.]{1,20}\d)",
        meaning="The driver's libraries ({version}) and its kernel module have different "
        "versions: it was updated and the old module is still loaded.",
        fix="Reboot the host, or unload and load the nvidia modules.",
        example="NVRM: API mismatch: the client has the version 535.161.08, but",
        origin="recalled: the kernel module of NVIDIA's driver 535",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="driver-combination",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="system has unsupported display driver / cuda driver",
        pattern=r"^(?:CUDA error: |Error 803: )system has unsupported display driver / cuda "
        r"driver combination",
        meaning="The container's CUDA compatibility library does not fit the driver of the host.",
        fix="Update the driver, or remove the `cuda-compat` package or its folder from "
        "LD_LIBRARY_PATH.",
        example="Error 803: system has unsupported display driver / cuda driver combination",
        origin="recalled: driver_types.h of CUDA 12",
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
        "working devices in this configuration",
        origin="recalled: cuda_diagnostics.cc of TensorFlow 2.4",
        severity="warning",
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
        "please update your driver to a newer version, or use an earlier cuda container",
        origin="recalled: libnvidia-container 1.17",
        weight=0.95,
    ),
    Signature(
        id="forward-compatibility",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="forward compatibility was attempted on non supported HW",
        pattern=r"CUDA error: forward compatibility was attempted on non supported HW",
        meaning="The container's CUDA compatibility library works on data-center GPUs only, so "
        "the driver of the host is too old for this container.",
        fix="Update the driver, or remove the `cuda-compat` package or its folder from "
        "LD_LIBRARY_PATH.",
        example="RuntimeError: CUDA error: forward compatibility was attempted on non supported HW",
        origin="source: strings in the CUDA runtime 12",
        weight=0.85,
        needle_tells=False,
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
        "restart after an update. Otherwise `nvidia-smi` shows more.",
        example="RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
        "functions before calling NumCudaDevices() that might have already set an error? Error "
        "802: system not yet initialized",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        needle_tells=False,
    ),
    Signature(
        id="nvml-version-mismatch",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle=" version mismatch",
        pattern=r"(?:Failed to initialize NVML|nvml error|NVMLError[A-Za-z]{0,40}): "
        r"[Dd]river/[Ll]ibrary version mismatch",
        meaning="The NVIDIA driver was updated while its old kernel module is still loaded, so "
        "nothing can use the GPUs.",
        fix="Reboot the host, or unload and load the nvidia modules.",
        example="Failed to initialize NVML: Driver/library version mismatch",
        origin="source: nvidia-smi of NVIDIA's driver",
        weight=0.95,
    ),
    Signature(
        id="nvml-rm-mismatch",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="RM has detected an NVML/RM version mismatch",
        pattern=r"RM has detected an NVML/RM version mismatch",
        meaning="The NVIDIA driver was updated while its old kernel module is still loaded, so "
        "nothing can use the GPUs.",
        fix="Reboot the host, or unload and load the nvidia modules. In a container, restart it.",
        example="pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version "
        "mismatch.",
        origin="source: pynvml.py of nvidia-ml-py 13",
    ),
    Signature(
        id="nvml-symbol-missing",
        code="failed-driver-too-old",
        role=Role.CAUSE,
        needle="undefined symbol: nvml",
        pattern=r"libnvidia-ml\.so\S{0,20}: undefined symbol: (?P<symbol>nvml\w{1,80})",
        meaning="The driver's NVML has no {symbol}: the program was built for a newer driver.",
        fix="Update the NVIDIA driver, or use an older version of that program or of nvidia-ml-py.",
        example="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1: undefined symbol: "
        "nvmlDeviceGetGpuFabricInfoV",
        origin="source: the dynamic linker's text, with a function of NVIDIA's driver 550",
        weight=0.7,
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
        id="extension-without-gpu",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="Not compiled with GPU support",
        pattern=r"Error: Not compiled with GPU support",
        meaning="An extension (detectron2, MMCV) was built without CUDA.",
        fix="Build it again where `nvcc` is installed: set CUDA_HOME, and FORCE_CUDA=1 if the "
        "building host has no GPU.",
        example="RuntimeError: Not compiled with GPU support",
        origin="recalled: detectron2/layers of detectron2 0.6",
        weight=0.95,
    ),
    Signature(
        id="operator-without-gpu",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="with arguments from the 'CUDA' backend",
        pattern=r"\bCould not run '[\w:.]{1,80}' with arguments from the 'CUDA' backend",
        meaning="An operation has no GPU version in this build: usually torchvision or an "
        "extension was installed for the CPU.",
        fix="Install the builds of torch, torchvision and extensions for the same CUDA.",
        example="NotImplementedError: Could not run 'torchvision::nms' with arguments from the "
        "'CUDA' backend.",
        origin="recalled: c10/core/dispatch of torch 2.0",
        weight=0.85,
    ),
    Signature(
        id="extension-without-device",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle=": implementation for device cuda",
        pattern=r"\w{1,60}: implementation for device cuda:\d{1,3} not found",
        meaning="MMCV was built without CUDA.",
        fix="Install the MMCV build for this torch and CUDA.",
        example="RuntimeError: nms_impl: implementation for device cuda:0 not found.",
        origin="recalled: mmcv/ops of MMCV 1.7",
        weight=0.95,
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
    Signature(
        id="cuda-runtime-architecture",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:8|48|98|209)\) ?: ",
        meaning="This build has no kernels for this GPU.",
        fix="Install a build for this GPU's compute capability.",
        example="RuntimeError: cuda runtime error (48) : no kernel image is available for "
        "execution on the device at aten/src/THC/THCTensorCopy.cu:20",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="thc-check-architecture",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="THCudaCheck FAIL file=",
        pattern=r"THCudaCheck FAIL file=\S{1,200} line=\d{1,6} error=(?:8|48|98|209) : ",
        meaning="torch (or an extension) was built without code for this GPU's generation.",
        fix="Install a torch built for this GPU, or build the extension for it "
        "(TORCH_CUDA_ARCH_LIST).",
        example="THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=48 : no "
        "kernel image is available for execution on the device",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="cuda-invalid-function",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle=" error: invalid device function",
        pattern=r"\b(?:CUDA|HIP) error: invalid device function",
        meaning="This build or extension has no kernels for this GPU.",
        fix="Install or build it for this GPU's compute capability (`TORCH_CUDA_ARCH_LIST`; "
        "`PYTORCH_ROCM_ARCH` for ROCm).",
        example="RuntimeError: HIP error: invalid device function",
        origin="recalled: driver_types.h of CUDA 12",
        weight=0.85,
        needle_tells=False,
        more_heads=("invalid device function",),
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
        id="bfloat16-unsupported",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="Bfloat16 is only supported on GPUs with compute capability",
        pattern=r"Bfloat16 is only supported on GPUs with compute capability of at least",
        meaning="This GPU is too old for bfloat16.",
        fix="Use float16 (`--dtype half`).",
        example="ValueError: Bfloat16 is only supported on GPUs with compute capability of at "
        "least 8.0. Your Tesla V100-SXM2-32GB GPU has compute capability 7.0.",
        origin="recalled: vllm/worker/worker.py of vLLM 0.6",
        weight=0.85,
    ),
    Signature(
        id="hip-no-binary",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="hipErrorNoBinaryForGpu",
        pattern=r"hipErrorNoBinaryForGpu\b",
        meaning="The binaries contain no code for this AMD GPU.",
        fix="Install builds for it (`rocminfo | grep gfx`), or try HSA_OVERRIDE_GFX_VERSION.",
        example="hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
        origin="recalled: hipamd of ROCm 5",
        weight=0.95,
    ),
    Signature(
        id="rocblas-no-library",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="rocBLAS error: Cannot read ",
        pattern=r"rocBLAS error: Cannot read \S{1,200}TensileLibrary\S{0,60}: .{1,60}? for GPU "
        r"arch ?: ?(?P<architecture>gfx\w{1,10})",
        meaning="rocBLAS contains no code for this AMD GPU ({architecture}).",
        fix="Install builds for it, or try HSA_OVERRIDE_GFX_VERSION.",
        example="rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No "
        "such file or directory for GPU arch : gfx1031",
        origin="recalled: library/src of rocBLAS 3",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="peer-access",
        code="failed-peer-to-peer",
        role=Role.CAUSE,
        needle="CUDA error: peer access ",
        pattern=r"CUDA error: peer access (?P<what>is not supported between these two devices|is "
        r"already enabled|has not been enabled)",
        meaning="Two GPUs could not reach each other's memory (peer access {what}).",
        fix="`nvidia-smi topo -p2p r` shows which pairs are allowed. In virtual machines and with "
        "the IOMMU on, peer access is off: `NCCL_P2P_DISABLE=1` makes NCCL use another path.",
        example="RuntimeError: CUDA error: peer access is not supported between these two devices",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("peer access is not supported between these two devices",),
    ),
    Signature(
        id="consumer-card-peer-to-peer",
        code="failed-peer-to-peer",
        role=Role.CAUSE,
        needle="support faster communication broadband via P2P or IB",
        pattern=r"support faster communication broadband via P2P or IB",
        meaning="These GPUs cannot reach each other's memory directly, and Accelerate refuses to "
        "go on as long as NCCL would try.",
        fix="`export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1`, or start with `accelerate launch`.",
        example="NotImplementedError: Using RTX 4000 series doesn't support faster communication "
        "broadband via P2P or IB.",
        origin="source: accelerate/state.py of Accelerate 1",
        weight=0.85,
    ),
)
