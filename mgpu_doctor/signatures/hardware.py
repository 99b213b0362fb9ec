"""What drivers and the kernel say of a failing GPU, beside XIDs: NVML, NVSwitch, AMD, PCIe."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="nvrm-off-the-bus",
        code="gpu-lost",
        role=Role.CAUSE,
        needle=" has fallen off the bus",
        pattern=r"NVRM: GPU (?:at )?(?:PCI:)?(?P<pci>[0-9A-Fa-f:.]{4,16}?):? (?:GPU )?has fallen "
        r"off the bus",
        meaning="The GPU at {pci} has fallen off the bus; the host can no longer reach it.",
        fix="Reboot the host. If it returns, check power, seating, cooling and the PCIe slot.",
        example="NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.",
        origin="source: a kernel log of NVIDIA's driver 525",
        weight=0.95,
    ),
    Signature(
        id="nvrm-init-failed",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="RmInitAdapter failed!",
        pattern=r"NVRM: GPU (?P<pci>[0-9A-Fa-f:.]{4,16}): RmInitAdapter failed! \((?P<error>[^)]*)",
        meaning="The driver cannot start the GPU at {pci}.",
        fix="Reboot the host; if it stays so, check the GPU's power and seating, and the driver.",
        example="NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x24:0x72:1447)",
        origin="source: a kernel log of NVIDIA's driver 535",
    ),
    Signature(
        id="nvml-device-handle",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="Unable to determine the device handle for ",
        pattern=r"Unable to determine the device handle for (?:GPU|gpu) ?\d{0,4}:? ?"
        r"(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{4,12}): (?P<reason>[^.]{1,80})",
        meaning="NVML cannot reach the GPU at {pci}: {reason}.",
        fix="Look for `NVRM: Xid` in `dmesg`; reset the GPU or reboot the host.",
        example="Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error",
        origin="source: nvidia-smi of NVIDIA's driver",
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
        id="nvml-unknown-error",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="Failed to initialize NVML: Unknown Error",
        pattern=r"Failed to initialize NVML: Unknown Error",
        meaning="This container lost its right to the GPUs, mostly because `systemctl "
        "daemon-reload` ran on the host.",
        fix="Start the container again; for good, set the runtime's cgroup driver to cgroupfs or "
        "pass the devices with `--device`.",
        example="Failed to initialize NVML: Unknown Error",
        origin="source: nvidia-smi of NVIDIA's driver",
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
        id="nvswitch-fatal",
        code="nvlink-down",
        role=Role.CAUSE,
        needle=": SXid (PCI:",
        pattern=r"(?P<switch>nvidia-nvswitch\d+): SXid \(PCI:(?P<pci>[0-9A-Fa-f:.]{4,16})\): "
        r"(?P<sxid>\d{5}), Fatal, (?P<what>[^\n]{1,120})",
        meaning="The NVSwitch {switch} reported a fatal error {sxid}: {what}.",
        fix="Stop the jobs of this host, restart the fabric manager or reboot; if it returns, have "
        "the baseboard checked.",
        example="nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal",
        origin="source: the NVSwitch driver of NVIDIA's open-gpu-kernel-modules",
    ),
    Signature(
        id="amd-gpu-hang",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="HW Exception by GPU node-",
        pattern=r"HW Exception by GPU node-(?P<node>\d+) .{0,60}reason ?: ?(?P<reason>[\w ]{1,40})",
        meaning="The AMD GPU of node {node} raised a hardware exception: {reason}.",
        fix="See `dmesg | grep amdgpu`; `rocm-smi --gpureset` or reboot the host.",
        example="HW Exception by GPU node-1 (Agent handle: 0x1b0fc990) reason :GPU Hang",
        origin="source: the ROCm runtime (ROCR)",
    ),
    Signature(
        id="amd-gpu-reset",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="amdgpu: GPU reset begin",
        pattern=r"amdgpu (?P<pci>[0-9A-Fa-f:.]{4,16}): amdgpu: GPU reset begin",
        meaning="The AMD GPU at {pci} hung and the kernel reset it; its processes lost their data.",
        fix="See the `ring … timeout` line before it in `dmesg`; update ROCm and firmware.",
        example="amdgpu 0000:87:00.0: amdgpu: GPU reset begin!",
        origin="source: drivers/gpu/drm/amd/amdgpu/amdgpu_device.c of Linux 6.1",
        needle_tells=False,
    ),
    Signature(
        id="amd-page-fault",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="Memory access fault by GPU ",
        pattern=r"Memory access fault by GPU \W{0,3}node-(?P<node>\d+)\W.{0,60}on address "
        r"(?P<address>0x\w+)",
        meaning="A kernel on the AMD GPU of node {node} used an address that is not mapped "
        "({address}).",
        fix="Run once with AMD_SERIALIZE_KERNEL=3 to find the kernel.",
        example="Memory access fault by GPU node-1 (Agent handle: 0x55ac14d27600) on address "
        "0x7f9587e00000. Reason: Page not present or supervisor privilege.",
        origin="source: the ROCm runtime (ROCR)",
    ),
    Signature(
        id="pcie-uncorrected",
        code="pcie-degraded",
        role=Role.CAUSE,
        needle="PCIe Bus Error: severity=Uncorrect",
        pattern=r"(?P<pci>[0-9a-f]{4}:[0-9a-f:.]{4,10}): (?:AER: )?PCIe Bus Error: "
        r"severity=Uncorrect(?:ed|able) \((?P<kind>Fatal|Non-Fatal)\)",
        meaning="The PCIe link of the device at {pci} had an uncorrected error ({kind}).",
        fix="See `lspci -s {pci}` for the device; check its slot, riser and power.",
        example="nvme 0000:17:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction "
        "Layer, (Receiver ID)",
        origin="source: drivers/pci/pcie/aer.c of Linux 6.1",
        severity="warning",
        weight=0.7,
    ),
    Signature(
        id="nvrm-not-responding",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="fallen off the bus and is not responding",
        pattern=r"NVRM: (?:system has )?fallen off the bus and is not responding to commands",
        meaning="A GPU has fallen off the bus; the host can no longer reach it. The lines before "
        "name it.",
        fix="Reboot the host. If it returns, check power, seating, cooling and the PCIe slot.",
        example="NVRM: fallen off the bus and is not responding to commands.",
        origin="source: kernel-open/nvidia/nv.c of NVIDIA's open driver 550",
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
        weight=0.9,
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
)
