"""NVIDIA's XIDs: what the driver writes into the kernel's log when a GPU has an error.

Their meaning is that of NVIDIA's public catalogue, https://docs.nvidia.com/deploy/xid-errors/.
"""

from __future__ import annotations

import re

from mgpu_doctor.signatures.signature import Role, Signature

_OWN_ENTRY = ("13", "31", "43", "45", "48", "61", "62", "63", "64", "74", "79", "94", "95", "109")
_OWN_ENTRIES = "|".join((*_OWN_ENTRY, "119", "120", "154"))
APPLICATION = frozenset({13, 31, 43, 45})
"""XIDs that a program usually brings about itself: the GPU is well."""
_LOG = "source: a kernel log of NVIDIA's driver, XID {} of its public catalogue"
_RESET = "Take the job off this GPU, then `nvidia-smi --gpu-reset -i {pci}` or reboot the host."


def _xid(number: str) -> str:
    return rf"NVRM: Xid \(PCI:(?P<pci>[0-9A-Fa-f:.]{{4,16}})[^)]{{0,40}}\): (?P<xid>{number}), "


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="xid-13-graphics-exception",
        code="gpu-xid",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("13"),
        meaning="XID 13 on the GPU at {pci}: a kernel made an illegal access or ran an illegal "
        "instruction. Usually a bug in the program, rarely the hardware.",
        fix="Run once with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer to find the kernel. "
        "If it is always this GPU, run `dcgmi diag -r 3` on it.",
        example="NVRM: Xid (PCI:0000:b5:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp "
        "Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
        origin=_LOG.format(13),
        weight=0.8,
    ),
    Signature(
        id="xid-31-page-fault",
        code="gpu-xid",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("31"),
        meaning="XID 31 on the GPU at {pci}: a page fault. A kernel used an address that is not "
        "mapped, usually a bug in the program or a library.",
        fix="Run once with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer to find the kernel.",
        example="NVRM: Xid (PCI:0000:01:00): 31, pid=2702, name=python3, Ch 00000008, intr "
        "00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_0 faulted @ 0x403_2ee00000. Fault "
        "is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        origin=_LOG.format(31),
        weight=0.8,
    ),
    Signature(
        id="xid-43-stopped",
        code="gpu-xid",
        role=Role.SYMPTOM,
        needle="NVRM: Xid",
        pattern=_xid("43"),
        meaning="XID 43 on the GPU at {pci}: the GPU stopped working for one process, after a "
        "fault of that process's own. The GPU itself is healthy.",
        fix="Look at the XID before it (13 or 31) and at the process's own error.",
        example="NVRM: Xid (PCI:0000:07:00): 43, pid=916085, name=python3, Ch 00000008",
        origin=_LOG.format(43),
        weight=0.7,
    ),
    Signature(
        id="xid-45-cleanup",
        code="gpu-xid",
        role=Role.SYMPTOM,
        needle="NVRM: Xid",
        pattern=_xid("45"),
        meaning="XID 45 on the GPU at {pci}: the driver removed a process's work, because the "
        "process was killed or because of an earlier error.",
        fix="Look at what came before it.",
        example="NVRM: Xid (PCI:0000:0a:00): 45, pid=48213, name=python, Ch 00000010",
        origin=_LOG.format(45),
        severity="warning",
        weight=0.4,
    ),
    Signature(
        id="xid-48-double-bit",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("48"),
        meaning="XID 48 on the GPU at {pci}: a memory error that ECC cannot correct. What was "
        "computed there is lost. It is the hardware's fault, not the program's.",
        fix=_RESET + " If it returns, have the GPU replaced.",
        example="NVRM: Xid (PCI:0000:52:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable "
        "double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x18f31d80 "
        "partition 16, subpartition 3.",
        origin=_LOG.format(48),
        weight=0.95,
    ),
    Signature(
        id="xid-61-62-microcontroller",
        code="gpu-xid",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("61|62"),
        meaning="XID {xid} on the GPU at {pci}: the GPU's power controller stopped (PMU). It does "
        "not recover by itself. Usually the hardware or its firmware.",
        fix="Reboot the host. If it returns, update driver and firmware, then have the GPU "
        "replaced.",
        example="NVRM: Xid (PCI:0000:01:00): 62, pid=2763, 0c83(1870) 00000000 00000000",
        origin=_LOG.format(62),
    ),
    Signature(
        id="xid-63-remapped",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("63"),
        meaning="XID 63 on the GPU at {pci}: a bad memory row was noted for replacement. The "
        "replacement takes effect with the next reset. It is the hardware's fault.",
        fix=_RESET,
        example="NVRM: Xid (PCI:0000:52:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: "
        "New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.",
        origin=_LOG.format(63),
        severity="warning",
    ),
    Signature(
        id="xid-64-remap-failed",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("64"),
        meaning="XID 64 on the GPU at {pci}: a bad memory row could not be replaced; the spare "
        "rows are used up or the record failed. It is the hardware's fault.",
        fix="Take the GPU out of service and have it replaced: `nvidia-smi -q -d ROW_REMAPPER`.",
        example="NVRM: Xid (PCI:0000:0f:00): 64, pid='<unknown>', name=<unknown>, Row Remapper "
        "Error: (0x00000002eebc4100) - All reserved rows for bank are remapped",
        origin=_LOG.format(64),
        weight=0.95,
    ),
    Signature(
        id="xid-74-nvlink",
        code="nvlink-down",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("74"),
        meaning="XID 74 on the GPU at {pci}: an NVLink connection failed. Usually the hardware: "
        "the link, its bridge or the baseboard, or the GPU at its other end.",
        fix="See `nvidia-smi nvlink -e`; reset all GPUs of the host or reboot it. If it returns, "
        "have the GPU, bridge or baseboard checked.",
        example="NVRM: Xid (PCI:0000:b9:00): 74, pid=<unknown>, name=<unknown>, NVLink: fatal "
        "error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        origin=_LOG.format(74),
        weight=0.95,
    ),
    Signature(
        id="xid-79-off-the-bus",
        code="gpu-lost",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("79"),
        meaning="XID 79: the GPU at {pci} has fallen off the bus; the host can no longer reach it. "
        "Usually the hardware (power, heat, seating, slot), rarely the driver.",
        fix="Reboot the host. If it returns, check power, seating, cooling and the PCIe slot.",
        example="NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        origin="source: nverror.h of NVIDIA's open-gpu-kernel-modules, XID 79",
        weight=0.98,
    ),
    Signature(
        id="xid-94-contained",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("94"),
        meaning="XID 94 on the GPU at {pci}: an uncorrectable memory error that ended one process; "
        "others on the GPU are safe. It is the hardware's fault, not the program's.",
        fix="Start the job again; " + _RESET[0].lower() + _RESET[1:],
        example="NVRM: Xid (PCI:0000:01:00): 94, pid=7062, Contained: CE User Channel (0x9). RST: "
        "No, D-RST: No",
        origin="source: NVIDIA's open-gpu-kernel-modules, XID 94",
        weight=0.95,
    ),
    Signature(
        id="xid-95-uncontained",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("95"),
        meaning="XID 95 on the GPU at {pci}: an uncorrectable memory error that was not contained. "
        "Every process on the GPU is affected. It is the hardware's fault, not the program's.",
        fix=_RESET + " If it returns, have the GPU replaced.",
        example="NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2,0x1). RST: "
        "Yes, D-RST: No",
        origin="source: NVIDIA's open-gpu-kernel-modules, XID 95",
        weight=0.95,
    ),
    Signature(
        id="xid-109-context-switch",
        code="gpu-xid",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("109"),
        meaning="XID 109 on the GPU at {pci}: the GPU could not switch between processes in time, "
        "so the driver removed the work. Usually a neighbour on the GPU or the driver.",
        fix="Do not share the GPU with other programs; update the driver.",
        example="NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, "
        "errorString CTX SWITCH TIMEOUT, Info 0x58005",
        origin=_LOG.format(109),
        weight=0.8,
    ),
    Signature(
        id="xid-119-120-firmware",
        code="gpu-xid",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid("119|120"),
        meaning="XID {xid} on the GPU at {pci}: the GPU's system processor (GSP) does not answer "
        "or failed. CUDA calls hang or fail from here on. Usually the driver's firmware, sometimes "
        "the hardware.",
        fix=_RESET + " Update the driver; NVIDIA's work-around is the module option "
        "NVreg_EnableGpuFirmware=0.",
        example="NVRM: Xid (PCI:0000:19:00): 119, pid=452531, name=cache_mgr_main, Timeout after "
        "6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) "
        "(0x20809004 0x608).",
        origin=_LOG.format(119),
        weight=0.95,
    ),
    Signature(
        id="xid-154-recovery",
        code="gpu-xid",
        role=Role.SYMPTOM,
        needle="GPU recovery action changed from",
        pattern=_xid("154")
        + r"GPU recovery action changed from 0x[0-9a-f]{1,16} \([^)]{1,40}\) to "
        r"0x[1-9a-f][0-9a-f]{0,15} \((?P<action>[^)]{1,40})\)",
        meaning="XID 154: after an earlier error the GPU at {pci} needs: {action}.",
        fix="Do that: {action}. The XID before this one says why.",
        example="NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to "
        "0x2 (Node Reboot Required)",
        origin=_LOG.format(154),
        needle_tells=False,
    ),
    Signature(
        id="xid-other",
        code="gpu-xid",
        role=Role.CAUSE,
        needle="NVRM: Xid",
        pattern=_xid(rf"(?!(?:{_OWN_ENTRIES}),)\d{{1,3}}"),
        meaning="XID {xid} on the GPU at {pci}: the driver reports an error.",
        fix="Look up XID {xid} at https://docs.nvidia.com/deploy/xid-errors/.",
        example="NVRM: Xid (PCI:0000:0d:00): 51, BAD_TSG encountered on runlist: 0 with error "
        "code: 4",
        origin=_LOG.format(51),
        severity="warning",
        weight=0.6,
    ),
)


def signature_of(number: int) -> Signature | None:
    """The signature of an XID of which only the number is known; None if there is none."""
    line = f"NVRM: Xid (PCI:0000:00:00): {number}, "
    return next((signature for signature in SIGNATURES if re.match(signature.pattern, line)), None)
