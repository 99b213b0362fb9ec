"""GPUs that a program does not find: driver, NVML, containers, schedulers, device numbers."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LIST = (
    "Compare `nvidia-smi -L`, CUDA_VISIBLE_DEVICES and what the script asks for; in a container "
    "also its `--gpus`."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="no-capable-device",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="no CUDA-capable device is detected",
        pattern=r"(?<!CUDA_ERROR_NO_DEVICE: )(?<!Cuda failure ')(?<!Cuda failure \d{3} ')"
        r"(?<!error=38 : )no CUDA-capable device is detected",
        meaning="CUDA sees no GPU: the driver is missing, CUDA_VISIBLE_DEVICES hides all, or the "
        "container was started without one.",
        fix=_LIST,
        example="RuntimeError: CUDA error: no CUDA-capable device is detected",
        origin="source: strings in the CUDA runtime 12",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="no-cuda-gpus",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="No CUDA GPUs are available",
        pattern=r"RuntimeError: No CUDA GPUs are available",
        meaning="The script asked for a GPU, and this process sees none.",
        fix="Compare `nvidia-smi -L` and `echo $CUDA_VISIBLE_DEVICES` where the rank runs. Under "
        "Slurm ask for GPUs (`--gres=gpu:N`), in Docker start with `--gpus all`.",
        example="RuntimeError: No CUDA GPUs are available",
        origin="source: c10/cuda/CUDAFunctions.cpp of torch 2.12",
    ),
    Signature(
        id="no-hip-gpus",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="No HIP GPUs are available",
        pattern=r"No HIP GPUs are available",
        meaning="torch sees no AMD GPU.",
        fix="`rocminfo` must list the GPU; the user needs the groups `video` and `render`; check "
        "HIP_VISIBLE_DEVICES.",
        example="RuntimeError: No HIP GPUs are available",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
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
        id="cuda-unknown-environment",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="CUDA unknown error - this may be due to an incorrectly set up",
        pattern=r"RuntimeError: CUDA unknown error - this may be due to an incorrectly set up "
        r"environment",
        meaning="CUDA could not start: the driver's modules are in a bad state, or "
        "CUDA_VISIBLE_DEVICES changed after the start.",
        fix="`nvidia-smi`; reload the driver (`modprobe -r nvidia_uvm && modprobe nvidia_uvm`) or "
        "restart the host or container.",
        example="RuntimeError: CUDA unknown error - this may be due to an incorrectly set up "
        "environment",
        origin="recalled: c10/cuda/CUDAFunctions.cpp of torch 2.13",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="system-not-initialised",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="system not yet initialized",
        pattern=r"CUDA error: system not yet initialized",
        meaning="The GPUs of this NVSwitch machine cannot be used: the Fabric Manager does not "
        "run.",
        fix="`systemctl start nvidia-fabricmanager`; its version must be the driver's.",
        example="RuntimeError: CUDA error: system not yet initialized",
        origin="source: strings in the CUDA runtime 12",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="nvml-library-missing",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="NVMLError_",
        pattern=r"NVMLError_(?:LibraryNotFound|DriverNotLoaded)\b",
        meaning="NVIDIA's driver is not installed or not loaded here.",
        fix="`nvidia-smi` must work; in a container start with `--gpus all`.",
        example="pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        origin="source: pynvml 12",
        weight=0.8,
    ),
    Signature(
        id="smi-no-devices",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="No devices were found",
        pattern=r"^(?:nvidia-smi: ?)?No devices were found\s*$",
        meaning="The driver is loaded and sees no GPU.",
        fix="`lspci | grep -i nvidia` and `dmesg -T | grep -i nvrm` show why.",
        example="No devices were found",
        origin="recalled: nvidia-smi of NVIDIA's driver 535",
        weight=0.8,
    ),
    Signature(
        id="nvidia-smi-no-driver",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="couldn't communicate with the NVIDIA driver",
        pattern=r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        meaning="No NVIDIA driver is loaded on this machine, so it has no usable GPU.",
        fix="Install or load the driver (`modprobe nvidia`); after a kernel update rebuild it.",
        example="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.",
        origin="source: nvidia-smi of NVIDIA's driver",
    ),
    Signature(
        id="kubelet-no-devices",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="Allocate failed due to ",
        pattern=r"Allocate failed due to (?:requested number of devices unavailable for|no "
        r"healthy devices present; cannot allocate unhealthy devices) (?P<resource>(?:nvidia|"
        r"amd)\.com/[\w.-]{1,60})",
        meaning="The node has fewer healthy GPUs ({resource}) than the pod asks for.",
        fix="`kubectl describe node`; restart its device plugin, or drain the node.",
        example="Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected",
        origin="recalled: pkg/kubelet/cm/devicemanager of Kubernetes 1.25",
        needle_tells=False,
    ),
    Signature(
        id="docker-runtime-unknown",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="nknown runtime specified nvidia",
        pattern=r"[Uu]nknown runtime specified nvidia|unknown or invalid runtime name: nvidia",
        meaning="Docker does not know NVIDIA's runtime, so the container cannot use GPUs.",
        fix="Install nvidia-container-toolkit, run `nvidia-ctk runtime configure "
        "--runtime=docker` and restart Docker.",
        example="docker: Error response from daemon: Unknown runtime specified nvidia.",
        origin="recalled: daemon/runtime_unix.go of Docker 20",
        more_heads=("unknown or invalid runtime name: nvidia",),
    ),
    Signature(
        id="cdi-device-unresolvable",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="unresolvable CDI devices ",
        pattern=r"unresolvable CDI devices (?P<device>\S{1,120})",
        meaning="The container runtime knows no GPU of the name {device}.",
        fix="`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, and `nvidia-ctk cdi "
        "list`.",
        example="failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
        origin="recalled: pkg/cdi of the container device interface 0.6",
    ),
    Signature(
        id="ray-no-node-type",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="No available node types can fulfill resource request",
        pattern=r"No available node types can fulfill resource request .{0,120}?'GPU'",
        meaning="No host of the Ray cluster has as many GPUs as the job asks for.",
        fix="Ask for fewer GPUs for each worker (`ray status` shows what there is).",
        example="Error: No available node types can fulfill resource request {'GPU': 8.0}.",
        origin="recalled: python/ray/autoscaler of Ray 2",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="engine-too-few-gpus",
        code="gpu-missing",
        role=Role.CAUSE,
        needle=" is less than total desired GPUs",
        pattern=r"Total available GPUs (?P<available>\d{1,5}) is less than total desired GPUs "
        r"\d{1,5}",
        meaning="The job asks for more GPUs than there are.",
        fix=_LIST,
        example="ValueError: Total available GPUs 4 is less than total desired GPUs 8",
        origin="recalled: vllm/executor of vLLM 0.6 and verl 0.2",
        weight=0.85,
        more_heads=("exceeds the total number of available GPUs",),
    ),
    Signature(
        id="engine-no-device-type",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="Failed to infer device type",
        pattern=r"RuntimeError: Failed to infer device type",
        meaning="vLLM found neither a GPU nor another device that it supports.",
        fix=_LIST,
        example="RuntimeError: Failed to infer device type",
        origin="recalled: vllm/config.py of vLLM 0.6",
        weight=0.85,
    ),
    Signature(
        id="invalid-device-ordinal",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle=" error: invalid device ordinal",
        pattern=r"(?:CUDA|HIP) error: invalid device ordinal",
        meaning="A GPU number was used that this process does not see: more ranks on the host "
        "than GPUs, the global rank taken for the local one, or CUDA_VISIBLE_DEVICES hides it.",
        fix="Use `int(os.environ['LOCAL_RANK'])` for the device, and `--nproc-per-node` no larger "
        "than `nvidia-smi -L | wc -l`; numbers count within CUDA_VISIBLE_DEVICES, from 0.",
        example="torch.AcceleratorError: CUDA error: invalid device ordinal",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("invalid device ordinal",),
    ),
    Signature(
        id="invalid-device-id",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="Invalid device id",
        pattern=r"AssertionError: Invalid device id$",
        meaning="A GPU number was used that this process does not see.",
        fix="Compare `torch.cuda.device_count()` and CUDA_VISIBLE_DEVICES with the numbers that "
        "the script uses: they begin with 0 among the visible ones.",
        example="AssertionError: Invalid device id",
        origin="source: torch/cuda/__init__.py of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="cuda-runtime-device",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:10|101|38|100|46)\) ?: ",
        meaning="The device number does not exist among the visible GPUs, or a GPU is not "
        "available.",
        fix="Start as many ranks as there are GPUs in CUDA_VISIBLE_DEVICES; use `local_rank`, not "
        "`rank`, as device number.",
        example="RuntimeError: cuda runtime error (10) : invalid device ordinal at "
        "torch/csrc/cuda/Module.cpp:37",
        origin="recalled: torch/csrc/cuda/Module.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="thc-check-device",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="THCudaCheck FAIL file=",
        pattern=r"THCudaCheck FAIL file=\S{1,200} line=\d{1,6} error=(?:10|101|38|100|46) : ",
        meaning="A GPU number does not exist among the visible ones, or a GPU is not available.",
        fix="Compare CUDA_VISIBLE_DEVICES with the numbers that the script uses.",
        example="THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=10 : "
        "invalid device ordinal",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="yolo-invalid-device",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="CUDA unavailable, invalid device",
        pattern=r"CUDA unavailable, invalid device \S{1,20} requested",
        meaning="The devices that the script asks for are not all there.",
        fix=_LIST,
        example="AssertionError: CUDA unavailable, invalid device 0,1 requested",
        origin="recalled: utils/torch_utils.py of YOLOv5 7",
        weight=0.85,
        more_heads=("Invalid CUDA 'device=", "Invalid CUDA '--device"),
    ),
    Signature(
        id="device-number-assertion",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="device < num_gpus INTERNAL ASSERT FAILED",
        pattern=r"device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
        meaning="A GPU number was used that is not below the number of visible GPUs. "
        "CUDA_VISIBLE_DEVICES may have been changed after torch counted them.",
        fix="Set CUDA_VISIBLE_DEVICES before the process starts, and count GPUs from 0.",
        example="RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "
        '"../aten/src/ATen/cuda/CUDAContext.cpp":50, please report a bug to PyTorch.',
        origin="recalled: aten/src/ATen/cuda/CUDAContext.cpp of torch 2.0",
        weight=0.95,
    ),
    Signature(
        id="tf-visible-device-list",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="'visible_device_list' listed an invalid",
        pattern=r"'visible_device_list' listed an invalid (?:GPU|Device) id '"
        r"(?P<device>[^']{1,20})'",
        meaning="TensorFlow's visible_device_list names GPU {device}, which is not there.",
        fix=_LIST,
        example="InvalidArgumentError: 'visible_device_list' listed an invalid GPU id '1' but "
        "visible device count is 1",
        origin="source: strings in the library of TensorFlow 2",
        weight=0.85,
        more_heads=("listed an invalid GPU id",),
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
)
