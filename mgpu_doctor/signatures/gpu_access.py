"""Why a program finds no GPU, or not those it asked for: the driver, NVML, containers, schedulers,
and the scripts' own checks."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LIST = (
    "Compare `nvidia-smi -L`, CUDA_VISIBLE_DEVICES and what the script asks for; in a container "
    "also its `--gpus`."
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
    fix: str = _LIST,
    severity: str = "critical",
    weight: float = 0.85,
    needle_tells: bool = True,
    more_heads: tuple[str, ...] = (),
) -> Signature:
    """A GPU that cannot be used."""
    return Signature(
        id=name,
        code=code,
        role=Role.CAUSE,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        severity=severity,
        weight=weight,
        needle_tells=needle_tells,
        more_heads=more_heads,
    )


SIGNATURES: tuple[Signature, ...] = (
    _refused(
        "no-capable-device",
        "gpu-missing",
        "no CUDA-capable device is detected",
        r"(?<!CUDA_ERROR_NO_DEVICE: )(?<!Cuda failure ')(?<!Cuda failure \d{3} ')"
        r"(?<!error=38 : )no CUDA-capable device is detected",
        meaning="CUDA sees no GPU: the driver is missing, CUDA_VISIBLE_DEVICES hides all, or the "
        "container was started without one.",
        example="RuntimeError: CUDA error: no CUDA-capable device is detected",
        origin="source: strings in the CUDA runtime 12",
        needle_tells=False,
    ),
    _refused(
        "no-hip-gpus",
        "failed-visible-devices",
        "No HIP GPUs are available",
        r"No HIP GPUs are available",
        meaning="torch sees no AMD GPU.",
        fix="`rocminfo` must list the GPU; the user needs the groups `video` and `render`; "
        "check HIP_VISIBLE_DEVICES.",
        example="RuntimeError: No HIP GPUs are available",
        origin="source: strings in the library of torch 2.13",
    ),
    _refused(
        "extension-without-gpu",
        "failed-no-kernel-image",
        "Not compiled with GPU support",
        r"Error: Not compiled with GPU support",
        meaning="An extension (detectron2, MMCV) was built without CUDA.",
        fix="Build it again where `nvcc` is installed: set CUDA_HOME, and FORCE_CUDA=1 if the "
        "building host has no GPU.",
        example="RuntimeError: Not compiled with GPU support",
        origin="recalled: detectron2/layers of detectron2 0.6",
        weight=0.95,
    ),
    _refused(
        "operator-without-gpu",
        "failed-no-kernel-image",
        "with arguments from the 'CUDA' backend",
        r"\bCould not run '[\w:.]{1,80}' with arguments from the 'CUDA' backend",
        meaning="An operation has no GPU version in this build: mostly torchvision or an extension "
        "was installed for the CPU.",
        fix="Install the builds of torch, torchvision and extensions for the same CUDA.",
        example="NotImplementedError: Could not run 'torchvision::nms' with arguments from the "
        "'CUDA' backend.",
        origin="recalled: c10/core/dispatch of torch 2.0",
    ),
    _refused(
        "extension-without-device",
        "failed-no-kernel-image",
        ": implementation for device cuda",
        r"\w{1,60}: implementation for device cuda:\d{1,3} not found",
        meaning="MMCV was built without CUDA.",
        fix="Install the MMCV build for this torch and CUDA.",
        example="RuntimeError: nms_impl: implementation for device cuda:0 not found.",
        origin="recalled: mmcv/ops of MMCV 1.7",
        weight=0.95,
    ),
    _refused(
        "forward-compatibility",
        "failed-driver-too-old",
        "forward compatibility was attempted on non supported HW",
        r"CUDA error: forward compatibility was attempted on non supported HW",
        meaning="The container's CUDA compatibility library works on data-center GPUs only, so the "
        "driver of the host is too old for this container.",
        fix="Update the driver, or remove the `cuda-compat` package or its folder from "
        "LD_LIBRARY_PATH.",
        example="RuntimeError: CUDA error: forward compatibility was attempted on non supported HW",
        origin="source: strings in the CUDA runtime 12",
        needle_tells=False,
    ),
    _refused(
        "system-not-initialised",
        "gpu-missing",
        "system not yet initialized",
        r"CUDA error: system not yet initialized",
        meaning="The GPUs of this NVSwitch machine cannot be used: the Fabric Manager does not "
        "run.",
        fix="`systemctl start nvidia-fabricmanager`; its version must be the driver's.",
        example="RuntimeError: CUDA error: system not yet initialized",
        origin="source: strings in the CUDA runtime 12",
        needle_tells=False,
    ),
    _refused(
        "driver-too-old-warning",
        "failed-driver-too-old",
        "CUDA initialization: ",
        r"UserWarning: CUDA initialization: The NVIDIA driver on your system is too old \(found "
        r"version (?P<version>\d{1,9})\)",
        meaning="The driver (version {version}) is older than this torch build needs, so torch "
        "does not use the GPUs.",
        fix="Update the driver, or install a torch build for an older CUDA.",
        example="/venv/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: The NVIDIA "
        "driver on your system is too old (found version 10020). Please update your GPU driver",
        origin="source: torch/csrc/cuda of torch 2.13",
        severity="info",
        weight=0.9,
        needle_tells=False,
    ),
    _refused(
        "driver-initialisation-warning",
        "failed-driver-too-old",
        "CUDA initialization: ",
        r"UserWarning: CUDA initialization: (?:CUDA driver initialization failed|Unexpected error "
        r"from cudaGetDeviceCount)",
        meaning="The driver could not be initialised, so torch does not use the GPUs.",
        fix="`nvidia-smi` must work; driver, container and Fabric Manager must fit together.",
        example="UserWarning: CUDA initialization: CUDA driver initialization failed, you might "
        "not have a CUDA gpu.",
        origin="source: strings in the library of torch 2.13",
        severity="info",
        weight=0.8,
        needle_tells=False,
    ),
    _refused(
        "driver-module-mismatch",
        "failed-driver-too-old",
        "NVRM: API mismatch: ",
        r"NVRM: API mismatch: the client has (?:the )?version (?P<version>[\d.]{1,20}\d)",
        meaning="The driver's libraries ({version}) and its kernel module have different versions: "
        "it was updated and the old module is still loaded.",
        fix="Reboot the host, or unload and load the nvidia modules.",
        example="NVRM: API mismatch: the client has the version 535.161.08, but",
        origin="recalled: the kernel module of NVIDIA's driver 535",
        weight=0.95,
        needle_tells=False,
    ),
    _refused(
        "nvml-library-missing",
        "gpu-missing",
        "NVMLError_",
        r"NVMLError_(?:LibraryNotFound|DriverNotLoaded)\b",
        meaning="NVIDIA's driver is not installed or not loaded here.",
        fix="`nvidia-smi` must work; in a container start with `--gpus all`.",
        example="pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        origin="source: pynvml 12",
        weight=0.8,
        needle_tells=False,
    ),
    _refused(
        "nvml-gpu-lost",
        "gpu-lost",
        "GPU is lost",
        r"GPU is lost(?:\.|$)",
        meaning="A GPU no longer answers: it fell off the bus.",
        fix="`dmesg -T | grep -i xid`; drain the node, reset or reboot it, and check power and "
        "seating.",
        example="pynvml.NVMLError_GpuIsLost: GPU is lost",
        origin="recalled: the error strings of NVML 535",
        weight=0.9,
        needle_tells=False,
    ),
    _refused(
        "smi-no-devices",
        "gpu-missing",
        "No devices were found",
        r"^(?:nvidia-smi: ?)?No devices were found\s*$",
        meaning="The driver is loaded and sees no GPU.",
        fix="`lspci | grep -i nvidia` and `dmesg -T | grep -i nvrm` tell why.",
        example="No devices were found",
        origin="recalled: nvidia-smi of NVIDIA's driver 535",
        weight=0.8,
    ),
    _refused(
        "kubelet-no-devices",
        "gpu-missing",
        "Allocate failed due to ",
        r"Allocate failed due to (?:requested number of devices unavailable for|no healthy devices "
        r"present; cannot allocate unhealthy devices) (?P<resource>(?:nvidia|amd)\.com/[\w.-]{1,60"
        r"})",
        meaning="The node has fewer healthy GPUs ({resource}) than the pod asks for.",
        fix="`kubectl describe node`; restart its device plugin, or drain the node.",
        example="Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected",
        origin="recalled: pkg/kubelet/cm/devicemanager of Kubernetes 1.25",
        weight=0.9,
        needle_tells=False,
    ),
    _refused(
        "docker-runtime-unknown",
        "gpu-missing",
        "nknown runtime specified nvidia",
        r"[Uu]nknown runtime specified nvidia|unknown or invalid runtime name: nvidia",
        meaning="Docker does not know NVIDIA's runtime, so the container cannot use GPUs.",
        fix="Install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker` "
        "and restart Docker.",
        example="docker: Error response from daemon: Unknown runtime specified nvidia.",
        origin="recalled: daemon/runtime_unix.go of Docker 20",
        weight=0.9,
        more_heads=("unknown or invalid runtime name: nvidia",),
    ),
    _refused(
        "cdi-device-unresolvable",
        "gpu-missing",
        "unresolvable CDI devices ",
        r"unresolvable CDI devices (?P<device>\S{1,120})",
        meaning="The container runtime knows no GPU of the name {device}.",
        fix="`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, and `nvidia-ctk cdi "
        "list`.",
        example="failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
        origin="recalled: pkg/cdi of the container device interface 0.6",
        weight=0.9,
    ),
    _refused(
        "ray-no-node-type",
        "gpu-missing",
        "No available node types can fulfill resource request",
        r"No available node types can fulfill resource request .{0,120}?'GPU'",
        meaning="No host of the Ray cluster has as many GPUs as the job asks for.",
        fix="Ask for fewer GPUs for each worker (`ray status` shows what there is).",
        example="Error: No available node types can fulfill resource request {'GPU': 8.0}.",
        origin="recalled: python/ray/autoscaler of Ray 2",
        needle_tells=False,
    ),
    _refused(
        "engine-too-few-gpus",
        "gpu-missing",
        " is less than total desired GPUs",
        r"Total available GPUs (?P<available>\d{1,5}) is less than total desired GPUs \d{1,5}",
        meaning="The job asks for more GPUs than there are.",
        example="ValueError: Total available GPUs 4 is less than total desired GPUs 8",
        origin="recalled: vllm/executor of vLLM 0.6 and verl 0.2",
        more_heads=("exceeds the total number of available GPUs",),
    ),
    _refused(
        "engine-no-device-type",
        "gpu-missing",
        "Failed to infer device type",
        r"RuntimeError: Failed to infer device type",
        meaning="vLLM found neither a GPU nor another device that it supports.",
        example="RuntimeError: Failed to infer device type",
        origin="recalled: vllm/config.py of vLLM 0.6",
    ),
    _refused(
        "yolo-invalid-device",
        "failed-visible-devices",
        "CUDA unavailable, invalid device",
        r"CUDA unavailable, invalid device \S{1,20} requested",
        meaning="The devices that the script asks for are not all there.",
        example="AssertionError: CUDA unavailable, invalid device 0,1 requested",
        origin="recalled: utils/torch_utils.py of YOLOv5 7",
        more_heads=("Invalid CUDA 'device=", "Invalid CUDA '--device"),
    ),
    _refused(
        "device-number-assertion",
        "failed-visible-devices",
        "device < num_gpus INTERNAL ASSERT FAILED",
        r"device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
        meaning="A GPU number was used that is not below the number of visible GPUs. "
        "CUDA_VISIBLE_DEVICES may have been changed after torch counted them.",
        fix="Set CUDA_VISIBLE_DEVICES before the process starts, and count GPUs from 0.",
        example="RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "
        '"../aten/src/ATen/cuda/CUDAContext.cpp":50, please report a bug to PyTorch.',
        origin="recalled: aten/src/ATen/cuda/CUDAContext.cpp of torch 2.0",
        weight=0.95,
    ),
    _refused(
        "tf-visible-device-list",
        "failed-visible-devices",
        "'visible_device_list' listed an invalid",
        r"'visible_device_list' listed an invalid (?:GPU|Device) id '(?P<device>[^']{1,20})'",
        meaning="TensorFlow's visible_device_list names GPU {device}, which is not there.",
        example="InvalidArgumentError: 'visible_device_list' listed an invalid GPU id '1' but "
        "visible device count is 1",
        origin="source: strings in the library of TensorFlow 2",
        more_heads=("listed an invalid GPU id",),
    ),
)
