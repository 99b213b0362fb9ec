"""Faults of the GPU's firmware, its switches and its driver, in the kernel's words: NVIDIA, AMD and
Intel, beyond NVIDIA's Xid lines."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_RESET = (
    "Drain the node, reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if it comes back, have "
    "the "
    "GPU replaced."
)


def _fault(
    name: str,
    code: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str = _RESET,
    weight: float = 0.85,
) -> Signature:
    """A fault that the kernel's log reports."""
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
        weight=weight,
        needle_tells=False,
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
    return _fault(
        f"xid-{kind}-{'named' if spelling == 'Xid' else 'reported'}",
        code,
        f"{spelling} ",
        rf"^(?!.{{0,400}}?NVRM: ?Xid).{{0,200}}?\b{spelling} (?:[Ee]rror:? "
        rf")?(?P<number>{numbers})\b"
        r"(?= ?\(|: ?[A-Z]| (?:error|occurred|detected|on GPU|GPU has|[Dd]ouble|MMU)\b)",
        meaning="The text reports Xid {number}, an error of a GPU or of what ran on it.",
        fix="`dmesg -T | grep -i xid` shows NVIDIA's own line; its catalogue of Xids says what the "
        "number means.",
        example=f"{spelling} {number} on GPU 0000:3b:00.0",
        origin="recalled: the messages of DCGM 3 and gpud",
        weight=0.6,
    )


SIGNATURES: tuple[Signature, ...] = (
    _fault(
        "nvrm-firmware-timeout",
        "gpu-lost",
        "NVRM: GPU",
        r"NVRM: GPU(?P<device>\d{1,2}) (?:_?kgsp\w{1,40}|_threadNodeCheckTimeout): .{0,120}?"
        r"(?:[Tt]imed out|GSP Timeout|Timeout was set|Timeout after \d|currentTime)",
        meaning="The firmware of GPU {device} (its GSP) no longer answers the driver.",
        example="NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 4711 "
        "heartbeat 4700 diff 6070 timeout 5200",
        origin="recalled: the kernel module of NVIDIA's driver 570",
    ),
    _fault(
        "nvrm-firmware-heartbeat",
        "gpu-lost",
        "GSP RM heartbeat timed out",
        r"GSP RM heartbeat timed out$",
        meaning="The firmware of a GPU (its GSP) no longer answers the driver.",
        example="NVRM: kgspHealthCheck: GSP RM heartbeat timed out",
        origin="recalled: the kernel module of NVIDIA's driver 570",
    ),
    *(
        _xid_in_other_words(spelling, kind)
        for spelling in ("Xid", "XID")
        for kind in ("memory", "lost", "link", "other")
    ),
    _fault(
        "amdgpu-ring-timeout",
        "gpu-lost",
        " timeout, signaled seq=",
        r"\bring (?P<ring>[\w.]{1,30}) timeout, signaled seq=\d",
        meaning="A queue of an AMD GPU ({ring}) hangs; the driver resets the GPU.",
        fix="Update ROCm and the kernel driver; `rocm-smi` shows temperature and power. Reboot if "
        "the reset fails.",
        example="[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=123, "
        "emitted seq=125",
        origin="recalled: drivers/gpu/drm/amd/amdgpu/amdgpu_job.c of Linux 6",
    ),
    _fault(
        "amdgpu-uncorrectable",
        "gpu-ecc",
        " uncorrectable hardware errors detected in ",
        r"\b(?P<count>[1-9]\d{0,8}) uncorrectable hardware errors detected in (?P<block>\w{1,20}) "
        r"block",
        meaning="An AMD GPU counted {count} uncorrectable memory errors in its {block} block.",
        fix="Drain the node; `rocm-smi --showrasinfo all`. Reset the GPU, or have it replaced.",
        example="amdgpu 0000:85:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc "
        "block",
        origin="recalled: drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c of Linux 6",
        weight=0.9,
    ),
    _fault(
        "hsa-memory-fault",
        "failed-illegal-access",
        "HSA_STATUS_ERROR_MEMORY_",
        r"HSA_STATUS_ERROR_MEMORY_(?:FAULT|APERTURE_VIOLATION)\b",
        meaning="A kernel on an AMD GPU accessed memory that is not its own.",
        fix="AMD_SERIALIZE_KERNEL=3 shows the call; look at custom kernels and indices.",
        example="Device::callbackQueue aborting with error : HSA_STATUS_ERROR_MEMORY_FAULT: Agent "
        "attempted to access an inaccessible address. code: 0x2b",
        origin="recalled: rocclr/device/rocm of ROCm 6",
    ),
    _fault(
        "hsa-queue-exception",
        "failed-illegal-access",
        "HSA_STATUS_ERROR_EXCEPTION",
        r"HSA_STATUS_ERROR_EXCEPTION\b",
        meaning="A kernel on an AMD GPU ended in a hardware exception.",
        fix="AMD_SERIALIZE_KERNEL=3 shows the call; look at custom kernels and indices.",
        example="Device::callbackQueue aborting with error : HSA_STATUS_ERROR_EXCEPTION: An "
        "HSAIL operation resulted in a hardware exception. code: 0x1016",
        origin="recalled: rocclr/device/rocm of ROCm 6",
    ),
    _fault(
        "hip-no-binary",
        "failed-no-kernel-image",
        "hipErrorNoBinaryForGpu",
        r"hipErrorNoBinaryForGpu\b",
        meaning="The binaries contain no code for this AMD GPU.",
        fix="Install builds for it (`rocminfo | grep gfx`), or try HSA_OVERRIDE_GFX_VERSION.",
        example="hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
        origin="recalled: hipamd of ROCm 5",
        weight=0.95,
    ),
    _fault(
        "rocblas-no-library",
        "failed-no-kernel-image",
        "rocBLAS error: Cannot read ",
        r"rocBLAS error: Cannot read \S{1,200}TensileLibrary\S{0,60}: .{1,60}? for GPU arch ?: ?"
        r"(?P<architecture>gfx\w{1,10})",
        meaning="rocBLAS contains no code for this AMD GPU ({architecture}).",
        fix="Install builds for it, or try HSA_OVERRIDE_GFX_VERSION.",
        example="rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No "
        "such file or directory for GPU arch : gfx1031",
        origin="recalled: library/src of rocBLAS 3",
        weight=0.95,
    ),
    _fault(
        "intel-gpu-hang",
        "gpu-lost",
        "GPU HANG: ecode ",
        r"\bGPU HANG: ecode [\d:a-f]{4,30}",
        meaning="An Intel GPU hangs; the kernel resets it.",
        fix="Update the kernel and the compute runtime; reboot the host.",
        example="i915 0000:03:00.0: [drm] GPU HANG: ecode 12:10:85def5fa, in python [4711]",
        origin="recalled: drivers/gpu/drm/i915 of Linux 6",
    ),
)
