"""What Ascend NPUs and their collective library HCCL print when a job fails."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="hccl-notify-timeout",
        code="hang-rank-behind",
        role=Role.SYMPTOM,
        needle="Notify register times out",
        pattern=r"\bEI0002: .{0,120}?The wait execution of the Notify register times out",
        meaning="An HCCL collective waited for another rank until its time limit.",
        fix="Look for the first error of another rank; if none has one, for the rank that did not "
        "reach the collective. `HCCL_EXEC_TIMEOUT` sets the limit.",
        example="EI0002: [PID: 4711] The wait execution of the Notify register times out. Reason: "
        "The Notify register has not received",
        origin="recalled: error codes of CANN 8",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="hccl-connect-timeout",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Getting socket times out",
        pattern=r"\bEI0006: .{0,120}?Getting socket times out",
        meaning="A rank waited for the connection of another one until the time limit.",
        fix="Look for the rank that did not start or is far behind. `HCCL_CONNECT_TIMEOUT` sets "
        "the limit.",
        example="EI0006: [PID: 4711] Getting socket times out. Reason: Remote Rank did not send "
        "the data in time",
        origin="recalled: error codes of CANN 8",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="hccl-error",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="HCCL error in",
        pattern=r"\bHCCL error in: ?\S{1,200}",
        meaning="A call of HCCL, the NPUs' collective library, failed.",
        fix="Look at the EI and EJ codes around this line and in ~/ascend/log, on every host; the "
        "earliest one names the cause.",
        example="RuntimeError: [ERROR] HCCL error in: "
        "torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:88",
        origin="recalled: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp of torch_npu 2.1",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="npu-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="NPU out of memory. Tried to allocate",
        pattern=r"\bNPU out of memory\. Tried to allocate (?P<requested>[\d.]{1,12} [KMGT]iB)",
        meaning="Allocating {requested} on the NPU failed.",
        fix="Use a smaller batch, activation checkpointing or sharding; `npu-smi info` shows "
        "other processes.",
        example="RuntimeError: NPU out of memory. Tried to allocate 512.00 MiB (NPU 1; 29.50 GiB "
        "total capacity)",
        origin="recalled: torch_npu/csrc/core/npu/NPUCachingAllocator.cpp of torch_npu 2.1",
    ),
    Signature(
        id="npu-sync-timeout",
        code="hang-rank-behind",
        role=Role.SYMPTOM,
        needle="execute failed, reason=[",
        pattern=r"\brt(?:Device|Stream)Synchronize\w{0,20} execute failed, reason=\["
        r"(?P<why>stream sync timeout|task timeout|notify wait timeout|fftsplus task timeout)\]",
        meaning="The NPU's work did not end within the time limit ({why}): usually a collective "
        "that waits for another rank.",
        fix="Look for the first error of another rank; if none has one, for the rank that did not "
        "reach the collective.",
        example="rtDeviceSynchronize execute failed, reason=[stream sync timeout]",
        origin="recalled: error codes of CANN 8",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="npu-core-exception",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="execute failed, reason=[",
        pattern=r"\brt\w{1,40} execute failed, reason=\[(?P<why>aicore exception|vector core "
        r"exception|aicpu exception|aicore trap exception)\]",
        meaning="A kernel on the NPU failed ({why}).",
        fix="Run with `ASCEND_LAUNCH_BLOCKING=1` to find the operator, and check its inputs.",
        example="rtStreamSynchronize execute failed, reason=[vector core exception]",
        origin="recalled: error codes of CANN 8",
        weight=0.7,
        needle_tells=False,
    ),
)
