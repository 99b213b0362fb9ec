"""torch's NCCL watchdog: collectives that never completed."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_WHO_WAITED = (
    "Find the rank that did not reach the collective: it is the culprit, not the rank that prints "
    "this. Compare the last lines of all ranks, or set `TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1` and give the dumps to `mgpu-doctor diagnose`; while the job "
    "hangs, `mgpu-doctor diagnose PID` names it. If one rank really works longer (saving, "
    "evaluating), use `init_process_group(..., timeout=timedelta(hours=1))`."
)
_FIRST = "Look for the first error of another rank, on every host: this one only lost its partner."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="nccl-watchdog-timeout",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle="collective operation timeout: ",
        pattern=r"(?:Watchdog c|C)aught collective operation timeout: WorkNCCL\((?:SeqNum="
        r"(?P<sequence>\d+), )?OpType=(?P<operation>\w+)\b[^)]{0,200}?Timeout\(ms\)="
        r"(?P<milliseconds>\d+)\) ran for (?P<ran>\d+) milliseconds before timing out",
        meaning="This rank waited {milliseconds} ms in {operation} for ranks that did not reach "
        "it.",
        fix=_WHO_WAITED,
        example="[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1412, "
        "OpType=ALLREDUCE, NumelIn=23592960, NumelOut=23592960, Timeout(ms)=600000) ran for "
        "600037 milliseconds before timing out.",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12, with "
        "numbers of our own",
        weight=0.7,
        more_heads=(
            "aught collective operation timeout: WorkNCCL",
            "Watchdog caught collective op",
            "milliseconds before timing out",
        ),
    ),
    Signature(
        id="nccl-watchdog-failure",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle=" detected by watchdog at work",
        pattern=r"(?:failure|Exception \(either an error or timeout\)) detected by watchdog at "
        r"work(?: sequence id)?: (?P<sequence>\d+)(?: PG status:|,) last enqueued (?:NCCL )?work: "
        r"(?P<enqueued>\d+), last completed (?:NCCL )?work: (?P<completed>\d+)",
        meaning="This rank's collective {sequence} never completed; {completed} was the last that "
        "did.",
        fix=_WHO_WAITED,
        example="[PG ID 0 PG GUID 0(default_pg) Rank 3] failure detected by watchdog at work "
        "sequence id: 1412 PG status: last enqueued work: 1414, last completed work: 1411",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12, with "
        "numbers of our own",
        weight=0.65,
        more_heads=(
            "Exception (either an error or timeout) detected by watchdog",
            "failure detected by watchdog",
        ),
    ),
    Signature(
        id="nccl-taken-down",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle="Some NCCL operations have failed or timed out",
        pattern=r"Some NCCL operations have failed or timed out\. Due to the",
        meaning="A collective failed or timed out, so torch ends this process.",
        fix=_WHO_WAITED,
        example="[Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous "
        "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12",
        weight=0.6,
        more_heads=(
            "To avoid data inconsistency, we are taking the entire process down",
            "To avoid this inconsistency, we are taking the entire process down",
        ),
    ),
    Signature(
        id="nccl-heartbeat",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle="watchdog got stuck for ",
        pattern=r"ProcessGroupNCCL's watchdog got stuck for (?P<seconds>\d+) seconds without "
        r"making progress",
        meaning="torch's NCCL watchdog itself was blocked for {seconds} s: a call into CUDA or "
        "NCCL hangs, or a thread keeps the GIL inside one.",
        fix="See native stacks with `mgpu-doctor diagnose PID` while it hangs, and look in `dmesg` "
        "for `NVRM: Xid`. `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800` allows more time.",
        example="[PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for "
        "480 seconds without making progress in monitoring enqueued collectives. This typically "
        "indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog,",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12",
        weight=0.65,
    ),
    Signature(
        id="nccl-heartbeat-signal",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle=" dump signal ",
        pattern=r"Received a (?:global )?dump signal (?:due to a collective timeout )?from +"
        r"(?:this local rank|rank (?P<other>\d+))",
        meaning="A collective timed out on one of the ranks, and all are asked to write what they "
        "did.",
        fix="Give the flight-recorder dumps of all ranks to `mgpu-doctor diagnose`. " + _WHO_WAITED,
        example="[PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a "
        "collective timeout from  rank 3 and we will try our best to dump the debug info.",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12",
        weight=0.6,
    ),
    Signature(
        id="desync-lagging",
        code="hang-rank-behind",
        role=Role.CAUSE,
        needle="] joined but didn't finish collective #",
        pattern=r"\[(?P<rank>\d+)\] joined but didn't finish collective #(?P<sequence>\d+)",
        meaning="Rank {rank} is the furthest behind: it entered collective {sequence} and is "
        "still in it, or called another one than the others.",
        fix="Compare what rank {rank} calls there with the other ranks: a branch on the rank or "
        "on data, or other shapes.",
        example="\t   - [2] joined but didn't finish collective #1412 (count from 1)",
        origin="source: torch/csrc/distributed/c10d/TraceUtils.h of torch 2.13",
        weight=0.75,
    ),
    Signature(
        id="desync-not-joined",
        code="hang-rank-behind",
        role=Role.CAUSE,
        needle=", but didn't join collective #",
        pattern=r"\[(?P<rank>\d+)\] finished collective #(?P<last>\d+), but didn't join "
        r"collective #(?P<sequence>\d+)",
        meaning="Rank {rank} finished collective {last} and never reached {sequence}, where the "
        "others wait.",
        fix="Look at what rank {rank} did then: its own log, or `mgpu-doctor diagnose PID` while "
        "it hangs.",
        example="\t     [2] finished collective #1411, but didn't join collective #1412 (count "
        "from 1)",
        origin="source: torch/csrc/distributed/c10d/TraceUtils.h of torch 2.13",
    ),
    Signature(
        id="desync-never-joined",
        code="hang-rank-behind",
        role=Role.CAUSE,
        needle="are the lagging ranks that caused this timeout",
        pattern=r"ranks \[(?P<rank>\d+)\] are the lagging ranks that caused this timeout",
        meaning="Rank {rank} never joined any collective.",
        fix="Look at what rank {rank} does after the start: its own log, or `mgpu-doctor diagnose "
        "PID`.",
        example="\t - To our best knowledge, ranks [2] are the lagging ranks that caused this "
        "timeout. They never joined any collectives",
        origin="source: torch/csrc/distributed/c10d/TraceUtils.h of torch 2.13",
    ),
    Signature(
        id="desync-many",
        code="hang-rank-behind",
        role=Role.SYMPTOM,
        needle=" but didn't ",
        pattern=r"\[(?P<ranks>\d+(?:, ?\d+)+)\] (?:joined but didn't finish collective #\d+|"
        r"finished collective #\d+, but didn't join collective #\d+)",
        meaning="Ranks {ranks} are behind the others, who wait for them in a collective.",
        fix="Look at what these ranks did then: their logs, or `mgpu-doctor diagnose PID` while "
        "they hang.",
        example="\t     [2, 3] finished collective #1411, but didn't join collective #1412 (count "
        "from 1)",
        origin="source: torch/csrc/distributed/c10d/TraceUtils.h of torch 2.13",
        weight=0.7,
    ),
    Signature(
        id="nccl-aborted",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle="NCCL communicator was aborted on rank",
        pattern=r"NCCL communicator was aborted on rank (?P<rank>\d+)",
        meaning="Rank {rank}'s communicator was torn down after an earlier error or time-out.",
        fix=_FIRST,
        example="torch.distributed.DistBackendError: NCCL communicator was aborted on rank 3.",
        origin="source: torch/csrc/distributed/c10d/NCCLUtils.cpp of torch 2.12",
        weight=0.5,
        more_heads=("NCCL communicator was aborted",),
    ),
    Signature(
        id="nccl-monitor-ends",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle="Terminating the process after attempting to dump debug info",
        pattern=r"Terminating the process after attempting to dump debug info, due to "
        r"(?P<reason>.{1,120}?)\.",
        meaning="torch's monitor of NCCL ended this process: {reason}.",
        fix=_WHO_WAITED,
        example="[PG ID 0 PG GUID 0(default_pg) Rank 1] Terminating the process after attempting "
        "to dump debug info, due to ProcessGroupNCCL watchdog hang.",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.9",
        weight=0.6,
    ),
    Signature(
        id="nccl-work-timeout",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle="Timeout at NCCL work: ",
        pattern=r"\bTimeout at NCCL work: (?P<sequence>\d{1,20})(?:, last enqueued NCCL work: "
        r"\d{1,20}, last completed NCCL work: (?P<completed>\d{1,20}))?",
        meaning="This rank's collective {sequence} never completed.",
        fix=_WHO_WAITED,
        example="[PG 1 Rank 1] Timeout at NCCL work: 7, last enqueued NCCL work: 8, last "
        "completed NCCL work: 6.",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.3",
        weight=0.65,
    ),
)
