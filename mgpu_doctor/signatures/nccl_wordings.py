"""What NCCL prints besides its result: the trail of an error through its files, sockets,
adapters."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_NETWORK = (
    "If another rank ended before, that is the cause. Else set NCCL_SOCKET_IFNAME to the interface "
    "that reaches all hosts, and open all ports between them."
)


def _nccl(
    name: str,
    code: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str = _NETWORK,
    role: Role = Role.SYMPTOM,
    weight: float = 0.6,
    needle_tells: bool = False,
) -> Signature:
    """A failure that NCCL logs."""
    return Signature(
        id=name,
        code=code,
        role=role,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        weight=weight,
        needle_tells=needle_tells,
    )


def _trail(file: str) -> Signature:
    """A line of the trail that an error leaves in the callers, of one of NCCL's files."""
    return _nccl(
        f"nccl-error-trail-{file}",
        "failed-nccl-init",
        f"NCCL INFO {file}.cc:",
        rf"NCCL INFO {file}\.cc:\d{{1,5}} -> (?P<result>[1256])\b",
        meaning="A call of NCCL failed with result {result} (1: a CUDA error, 2: a system error, "
        "5: "
        "invalid usage, 6: a lost partner).",
        fix="Run with `NCCL_DEBUG=WARN` on all ranks: the first `NCCL WARN` says why.",
        example=f"node01:4711:4790 [0] NCCL INFO {file}.cc:270 -> 2",
        origin="source: src/include/checks.h of NCCL 2.32",
        weight=0.5,
    )


SIGNATURES: tuple[Signature, ...] = (
    *(_trail(name) for name in ("bootstrap", "init", "group")),
    _nccl(
        "nccl-collectives-differ",
        "hang-collective-mismatch",
        "Mismatched collective detected, please check",
        r"NCCL WARN Mismatched collective detected, please check your collective calls at and "
        r"around rank (?P<rank>\d{1,7})",
        meaning="Ranks called different collectives, or with different sizes, around rank {rank}.",
        fix="Compare what the ranks call there. NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL logs each "
        "collective; TORCH_DISTRIBUTED_DEBUG=DETAIL compares them.",
        example="init.cc:1247 NCCL WARN Mismatched collective detected, please check your "
        "collective calls at and around rank 3. You can use NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=COLL to see the collective logs",
        origin="recalled: src/init.cc of NCCL 2.4",
        role=Role.CAUSE,
        weight=0.9,
        needle_tells=True,
    ),
    _nccl(
        "nccl-socket-call-failed",
        "failed-nccl-init",
        "NCCL WARN socket",
        r"NCCL WARN socket\w{1,30}: Call to (?P<call>\w{1,20}) (?:from|to) (?P<peer>\S{1,80}) "
        r"failed ?: (?P<reason>[A-Z][\w ]{3,60})",
        meaning="NCCL's connection to {peer} broke ({reason}).",
        example="node01:4711:4790 [0] misc/socket.cc:503 NCCL WARN socketProgressOpt: Call to recv "
        "from 10.0.0.5<43251> failed : Connection timed out",
        origin="source: src/misc/socket.cc of NCCL 2.32",
    ),
    _nccl(
        "nccl-socket-gave-up",
        "failed-nccl-init",
        "NCCL WARN socket",
        r"NCCL WARN socket(?:StartConnect|PollConnect|Connect|ConnectCheck)\w{0,10}: exceeded "
        r"(?:timeout|error retry|retries|number of)",
        meaning="NCCL tried in vain to connect to another rank.",
        example="worker-0:64:1423 [0] misc/socket.cc:538 NCCL WARN socketStartConnect: exceeded "
        "timeout (20000) sec",
        origin="recalled: src/misc/socket.cc of NCCL 2.18",
        weight=0.7,
    ),
    _nccl(
        "nccl-ib-event-old",
        "failed-nccl-init",
        " Got async event : ",
        r"NCCL WARN NET/IB : (?:\w{1,20}:\d{1,3} )?Got async event : (?P<event>port error|device "
        r"fatal|QP fatal|local catastrophic error|LID change|client reregistration)",
        meaning="The InfiniBand adapter reported an event that breaks connections ({event}).",
        fix="Check the adapter and its cable on that host (`ibstat`, `dmesg | grep mlx5`).",
        example="node01:45:128 [2] transport/net_ib.cc:74 NCCL WARN NET/IB : Got async event : "
        "port "
        "error",
        origin="recalled: src/transport/net_ib.cc of NCCL 2.10",
        role=Role.CAUSE,
        weight=0.7,
    ),
    _nccl(
        "nccl-ipc-handle",
        "failed-nccl-init",
        "ailed to open CUDA IPC handle",
        r"NCCL WARN [Ff]ailed to open CUDA IPC handle",
        meaning="NCCL could not share a GPU's memory between two processes.",
        fix="In containers use one IPC and PID namespace (`--ipc=host --pid=host`); else "
        "`export NCCL_P2P_DISABLE=1`.",
        example="node01:98:210 [0] transport/p2p.cc:78 NCCL WARN failed to open CUDA IPC handle : "
        "30 "
        "unknown error",
        origin="recalled: src/transport/p2p.cc of NCCL 2.4",
        needle_tells=True,
    ),
    _nccl(
        "nccl-ecc",
        "gpu-ecc",
        "uncorrectable ECC error encountered",
        r"Cuda failure (?:\d{1,9} )?'uncorrectable ECC error encountered'",
        meaning="The memory of this rank's GPU has errors that could not be corrected.",
        fix="Drain the node; `nvidia-smi -q -d ECC` counts them. Reset or replace the GPU.",
        example="node01:30630:30661 [3] enqueue.cc:102 NCCL WARN Cuda failure 'uncorrectable ECC "
        "error encountered'",
        origin="source: src/include/checks.h of NCCL 2.32",
        role=Role.CAUSE,
        weight=0.97,
    ),
    _nccl(
        "nccl-peer-access",
        "failed-peer-to-peer",
        "peer access is not supported between",
        r"Cuda failure (?:\d{1,9} )?'peer access is not supported between these two devices'",
        meaning="NCCL could not reach the memory of another GPU directly.",
        fix="`export NCCL_P2P_DISABLE=1`; `nvidia-smi topo -p2p r` shows which pairs can. In a "
        "virtual machine look at ACS and the IOMMU.",
        example="node01:30630:30661 [3] transport/p2p.cc:136 NCCL WARN Cuda failure 'peer access "
        "is "
        "not supported between these two devices'",
        origin="source: src/include/checks.h of NCCL 2.32",
        role=Role.CAUSE,
        weight=0.95,
    ),
    _nccl(
        "nccl-shm-extend",
        "shm-exhausted",
        "failed to extend /dev/shm/nccl-",
        r"\bfailed to extend /dev/shm/nccl-\w{1,20}(?: to (?P<bytes>\d{1,15}) bytes)?",
        meaning="/dev/shm has no room for NCCL's buffers.",
        fix="`docker run --shm-size=16g` or `--ipc=host`; `df -h /dev/shm`.",
        example="node01:98:210 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend "
        "/dev/shm/nccl-a1B2c3 to 9637892 bytes",
        origin="recalled: src/misc/shmutils.cc of NCCL 2.20",
        role=Role.CAUSE,
        weight=0.9,
        needle_tells=True,
    ),
)
