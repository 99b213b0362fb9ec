"""Failing GPUs, links and switches, as drivers and the kernel report them. XIDs: `xid_codes`."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_RESET = (
    "Drain the node, reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if it comes back, have "
    "the GPU replaced."
)
_IOMMU = (
    "The IOMMU blocked a device's access to memory. GPUs and network cards that access each "
    "other's memory directly then hang or read wrong data."
)
_NO_IOMMU = (
    "Look up the device with `lspci -s ADDRESS`. If it is a GPU or a network card, boot with "
    "`iommu=pt` or turn the IOMMU off in the BIOS; `NCCL_P2P_DISABLE=1` avoids direct access."
)
_XIDS = {
    "memory": ("48|64|94|95", "gpu-ecc"),
    "lost": ("79", "gpu-lost"),
    "link": ("74", "nvlink-down"),
    "other": ("13|31|32|43|61|62|69|109|119|120", "gpu-xid"),
}
"""Kind of fault -> numbers in NVIDIA's catalogue of Xids, and code."""


def _xid_in_other_words(spelling: str, kind: str) -> Signature:
    """An Xid that a monitor or a person names, not the driver's own line."""
    numbers, code = _XIDS[kind]
    number = numbers.partition("|")[0]
    return Signature(
        id=f"xid-{kind}-{'named' if spelling == 'Xid' else 'reported'}",
        code=code,
        role=Role.CAUSE,
        needle=f"{spelling} ",
        pattern=rf"^(?!.{{0,400}}?NVRM: ?Xid).{{0,200}}?\b{spelling} (?:[Ee]rror:? )?"
        rf"(?P<number>{numbers})\b"
        r"(?= ?\(|: ?[A-Z]| (?:error|occurred|detected|on GPU|GPU has|[Dd]ouble|MMU)\b)",
        meaning="The text reports Xid {number}, an error of a GPU or of what ran on it.",
        fix="`dmesg -T | grep -i xid` shows NVIDIA's own line; its catalogue of Xids says what the "
        "number means.",
        example=f"{spelling} {number} on GPU 0000:3b:00.0",
        origin="recalled: the messages of DCGM 3 and gpud",
        weight=0.6,
    )


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
        id="nvrm-firmware-timeout",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="NVRM: GPU",
        pattern=r"NVRM: GPU(?P<device>\d{1,2}) (?:_?kgsp\w{1,40}|_threadNodeCheckTimeout): "
        r".{0,120}?(?:[Tt]imed out|GSP Timeout|Timeout was set|Timeout after \d|currentTime)",
        meaning="The firmware of GPU {device} (its GSP) no longer answers the driver.",
        fix=_RESET,
        example="NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 4711 "
        "heartbeat 4700 diff 6070 timeout 5200",
        origin="recalled: the kernel module of NVIDIA's driver 570",
        weight=0.85,
    ),
    Signature(
        id="nvrm-firmware-heartbeat",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="GSP RM heartbeat timed out",
        pattern=r"GSP RM heartbeat timed out$",
        meaning="The firmware of a GPU (its GSP) no longer answers the driver.",
        fix=_RESET,
        example="NVRM: kgspHealthCheck: GSP RM heartbeat timed out",
        origin="recalled: the kernel module of NVIDIA's driver 570",
        weight=0.85,
        needle_tells=False,
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
        id="nvml-unknown-error",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="Failed to initialize NVML: Unknown Error",
        pattern=r"Failed to initialize NVML: Unknown Error",
        meaning="This container lost its right to the GPUs, usually because `systemctl "
        "daemon-reload` ran on the host.",
        fix="Start the container again; for good, set the runtime's cgroup driver to cgroupfs or "
        "pass the devices with `--device`.",
        example="Failed to initialize NVML: Unknown Error",
        origin="source: nvidia-smi of NVIDIA's driver",
        weight=0.8,
    ),
    Signature(
        id="nvml-gpu-lost",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="GPU is lost",
        pattern=r"GPU is lost(?:\.|$)",
        meaning="A GPU no longer answers: it fell off the bus.",
        fix="`dmesg -T | grep -i xid`; drain the node, reset or reboot it, and check power and "
        "seating.",
        example="pynvml.NVMLError_GpuIsLost: GPU is lost",
        origin="recalled: the error strings of NVML 535",
        needle_tells=False,
    ),
    *(
        _xid_in_other_words(spelling, kind)
        for spelling in ("Xid", "XID")
        for kind in ("memory", "lost", "link", "other")
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
        pattern=r"CUDA error: (?P<what>uncorrectable NVLink error detected during the execution|"
        r"Invalid access of peer GPU memory over nvlink or a hardware error)",
        meaning="A transfer over NVLink failed ({what}).",
        fix="Drain the node and have the link or GPU checked. `nvidia-smi nvlink --errorcounters` "
        "and `dmesg | grep Xid` (74) name the link.",
        example="RuntimeError: CUDA error: uncorrectable NVLink error detected during the "
        "execution",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        weight=0.95,
    ),
    Signature(
        id="nvswitch-fatal",
        code="nvlink-down",
        role=Role.CAUSE,
        needle=": SXid (PCI:",
        pattern=r"(?P<switch>nvidia-nvswitch\d+): SXid \(PCI:(?P<pci>[0-9A-Fa-f:.]{4,16})\): "
        r"(?P<sxid>\d{5}), Fatal, (?P<what>[^\n]{1,120})",
        meaning="The NVSwitch {switch} reported a fatal error {sxid}: {what}.",
        fix="Stop the jobs of this host, restart the fabric manager or reboot; if it returns, "
        "have the baseboard checked.",
        example="nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal",
        origin="source: the NVSwitch driver of NVIDIA's open-gpu-kernel-modules",
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
        example="nvme 0000:17:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), "
        "type=Transaction Layer, (Receiver ID)",
        origin="source: drivers/pci/pcie/aer.c of Linux 6.1",
        severity="warning",
        weight=0.7,
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
        id="amdgpu-ring-timeout",
        code="gpu-lost",
        role=Role.CAUSE,
        needle=" timeout, signaled seq=",
        pattern=r"\bring (?P<ring>[\w.]{1,30}) timeout, signaled seq=\d",
        meaning="A queue of an AMD GPU ({ring}) hangs; the driver resets the GPU.",
        fix="Update ROCm and the kernel driver; `rocm-smi` shows temperature and power. Reboot if "
        "the reset fails.",
        example="[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=123, "
        "emitted seq=125",
        origin="recalled: drivers/gpu/drm/amd/amdgpu/amdgpu_job.c of Linux 6",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="amdgpu-uncorrectable",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle=" uncorrectable hardware errors detected in ",
        pattern=r"\b(?P<count>[1-9]\d{0,8}) uncorrectable hardware errors detected in "
        r"(?P<block>\w{1,20}) block",
        meaning="An AMD GPU counted {count} uncorrectable memory errors in its {block} block.",
        fix="Drain the node; `rocm-smi --showrasinfo all`. Reset the GPU, or have it replaced.",
        example="amdgpu 0000:85:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc "
        "block",
        origin="recalled: drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c of Linux 6",
        needle_tells=False,
    ),
    Signature(
        id="intel-gpu-hang",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="GPU HANG: ecode ",
        pattern=r"\bGPU HANG: ecode [\d:a-f]{4,30}",
        meaning="An Intel GPU hangs; the kernel resets it.",
        fix="Update the kernel and the compute runtime; reboot the host.",
        example="i915 0000:03:00.0: [drm] GPU HANG: ecode 12:10:85def5fa, in python [4711]",
        origin="recalled: drivers/gpu/drm/i915 of Linux 6",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="sycl-device-lost",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="_RESULT_ERROR_DEVICE_LOST",
        pattern=r"\b(?:UR|ZE)_RESULT_ERROR_DEVICE_LOST\b",
        meaning="The Intel GPU was lost: a kernel hung, or the driver reset the device.",
        fix="`dmesg | grep -i -e xe -e i915` shows the reset; update the GPU driver and firmware.",
        example="RuntimeError: level_zero backend failed with error: 20 "
        "(UR_RESULT_ERROR_DEVICE_LOST)",
        origin="recalled: ur_api.h of oneAPI Unified Runtime",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="iommu-fault-intel",
        code="failed-peer-to-peer",
        role=Role.CAUSE,
        needle="] Request device [",
        pattern=r"\bDMAR: \[DMA (?:Read|Write)[\w ]{0,20}\] Request device \[[\da-f:.]{7,12}\] "
        r"(?:PASID \w{1,12} )?fault addr",
        meaning=_IOMMU,
        fix=_NO_IOMMU,
        example="[  471.000000] DMAR: [DMA Write] Request device [3b:00.0] fault addr c0007000 "
        "[fault reason 05] PTE Write access is not set",
        origin="recalled: drivers/iommu/intel/dmar.c of Linux 6",
        severity="warning",
        least=2,
        weight=0.7,
    ),
    Signature(
        id="iommu-fault-amd",
        code="failed-peer-to-peer",
        role=Role.CAUSE,
        needle="[IO_PAGE_FAULT ",
        pattern=r"\bAMD-Vi: Event logged \[IO_PAGE_FAULT ",
        meaning=_IOMMU,
        fix=_NO_IOMMU,
        example="[  471.000000] nvidia 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT "
        "domain=0x0007 address=0xc0007000 flags=0x0020]",
        origin="recalled: drivers/iommu/amd/iommu.c of Linux 6",
        severity="warning",
        least=2,
        weight=0.7,
    ),
)
