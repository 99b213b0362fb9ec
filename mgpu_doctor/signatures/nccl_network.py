"""What NCCL says when a rank cannot reach another one, or no longer does."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_INTERFACE = (
    "Set `NCCL_SOCKET_IFNAME` to the interface that the hosts share (`ip -br addr`), open all "
    "ports between them, and run with `NCCL_DEBUG=INFO` to see what NCCL chose."
)
_FIRST = "Look for the first error of another rank, on every host: this one only lost its partner."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="nccl-id-from-store",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="and retrieving ncclUniqueId from [0]",
        pattern=r"\[(?P<rank>\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId "
        r"from \[0\] via c10d key-value store by key '.{0,100}?', but store->get\('.{0,100}?'\) "
        r"got error: (?P<why>.{1,200})",
        meaning="Rank {rank} wanted to set up NCCL, and rank 0 was not there ({why}).",
        fix="Look at rank 0: it ended, never came to its first collective, or is far behind.",
        example="torch.distributed.DistBackendError: [3] is setting up NCCL communicator and "
        "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') "
        "got error: Connection reset by peer",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12",
        weight=0.55,
        more_heads=("ncclUniqueId from [0] via c10d key-value store",),
    ),
    Signature(
        id="nccl-remote-error",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="ncclRemoteError: ",
        pattern=r"ncclRemoteError: A call failed possibly due to a network error or a remote "
        r"process exiting prematurely",
        meaning="Another rank ended, or the network to it broke.",
        fix=_FIRST + " If none has one, it was the network: " + _INTERFACE,
        example="ncclRemoteError: A call failed possibly due to a network error or a remote "
        "process exiting prematurely.",
        origin="source: torch/csrc/distributed/c10d/NCCLUtils.cpp of torch 2.12",
        weight=0.5,
        more_heads=("ncclRemoteError: A call failed possibly due to a network error",),
    ),
    Signature(
        id="nccl-peer-closed",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Connection closed by remote peer",
        pattern=r"NCCL WARN .{0,80}?Connection closed by remote peer (?P<host>\S{1,255})",
        meaning="The rank on {host} that this one talked to is gone.",
        fix=_FIRST,
        example="node01:183006:183181 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection "
        "closed by remote peer node02<47861>",
        origin="source: src/misc/socket.cc of NCCL 2.32",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="nccl-no-interface",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="no socket interface found",
        pattern=r"NCCL WARN Bootstrap : no socket interface found",
        meaning="NCCL found no network interface that it may use: NCCL_SOCKET_IFNAME names none "
        "of this host's.",
        fix="Set `NCCL_SOCKET_IFNAME` to one of those that `ip -br addr` lists, or unset it.",
        example="node01:4711:4711 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface "
        "found",
        origin="source: src/bootstrap.cc of NCCL 2.32",
        weight=0.95,
    ),
    Signature(
        id="nccl-no-listening-interface",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="NET/Socket : No usable listening interface found",
        pattern=r"NET/Socket : No usable listening interface found",
        meaning="NCCL found no network interface on which other hosts could reach it.",
        fix=_INTERFACE,
        example="node01:4711:4711 [0] misc/socket.cc:401 NCCL WARN NET/Socket : No usable "
        "listening interface found",
        origin="source: src/misc/socket.cc of NCCL 2.32",
    ),
    Signature(
        id="nccl-connect-failed",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="NCCL WARN",
        pattern=r"NCCL WARN .{0,80}?[Cc]onnect to (?P<host>\S{1,255}) (?:failed :|returned) "
        r"(?P<why>No route to host|Connection timed out|Network is unreachable)",
        meaning="NCCL could not connect to {host} ({why}).",
        fix=_INTERFACE,
        example="node01:4711:4790 [0] misc/socket.cc:484 NCCL WARN socketPollConnect: connect to "
        "10.0.0.2<41033> returned No route to host, exceeded error retry count after 35 attempts",
        origin="source: src/misc/socket.cc of NCCL 2.32",
        weight=0.8,
    ),
    Signature(
        id="nccl-connect-refused",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN",
        pattern=r"NCCL WARN .{0,80}?[Cc]onnect to (?P<host>\S{1,255}) (?:failed :|returned) "
        r"Connection refused",
        meaning="Nobody listens at {host} any more: the rank there ended, or a firewall refuses.",
        fix=_FIRST + " If none has one: " + _INTERFACE,
        example="node01:4711:4790 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to "
        "10.0.0.2<41033> failed : Connection refused",
        origin="source: src/misc/socket.cc of NCCL 2.19",
        weight=0.5,
    ),
    Signature(
        id="nccl-ib-completion",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Got completion from peer",
        pattern=r"NCCL WARN NET/IB ?: Got completion from peer (?P<host>\S{1,255}) with "
        r"(?:error|status=) ?(?:\w+\()?(?P<status>\d+)",
        meaning="A transfer over InfiniBand or RoCE to {host} failed with status {status}. 12 "
        "means no answer (a bad link, or the rank there died); 4 and 5 follow after that.",
        fix="If a rank on that host ended first, that is the cause. Else check the link (`ibstat`, "
        "`ibv_devinfo`, `perfquery`), the switch and the GID (`NCCL_IB_GID_INDEX`, RoCE v2); "
        "`NCCL_IB_TIMEOUT=22` bears short outages.",
        example="node01:984:1357 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion "
        "from peer 10.0.0.7<44206> with error 12, opcode 1, len 0, vendor err 129 (Send)",
        origin="source: src/transport/net_ib.cc of NCCL 2.18",
        weight=0.65,
        needle_tells=False,
    ),
    Signature(
        id="nccl-ib-call",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="Call to ibv_",
        pattern=r"NCCL WARN .{0,80}?Call to "
        r"(?P<call>ibv_(?:reg_mr\w{0,40}|create_qp|create_cq|modify_qp|alloc_pd|open_device)) "
        r"failed(?: with (?:error )?(?P<why>.{1,80}))?",
        meaning="InfiniBand could not be set up ({call} failed).",
        fix="Allow locked memory (`ulimit -l unlimited`, Docker `--ulimit memlock=-1`), check the "
        "ports (`ibstat`) and for RoCE the GID index. `NCCL_IB_DISABLE=1` tells whether the rest "
        "works (over slower sockets).",
        example="node01:984:1357 [4] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_create_qp failed "
        "with error Cannot allocate memory",
        origin="source: src/misc/ibvwrap.cc of NCCL 2.32",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="nccl-ib-fatal-event",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle=" async fatal event",
        pattern=r"NET/IB : (?P<device>[\w.-]{1,40}):(?P<port>\d+) async fatal event(?: on "
        r"\w+\b)?.{0,200}?: (?P<event>[^:]{1,80})$",
        meaning="The InfiniBand adapter {device} reported a fatal event ({event}).",
        fix="Check the adapter and its cable on that host (`ibstat`, `dmesg | grep mlx5`), and "
        "drain it.",
        example="node01:984:1040 [0] transport/net_ib.cc:131 NCCL WARN NET/IB : mlx5_0:1 async "
        "fatal event: local catastrophic error",
        origin="source: src/transport/net_ib.cc of NCCL 2.32",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="nccl-last-error-connect",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="onnect to ",
        pattern=r"^(?:Last error: ?)?socket(?:Start|Poll|Finalize)Connect: [Cc]onnect to "
        r"(?P<host>\S{1,255}) (?:failed ?:|returned) (?P<why>[A-Z][a-z ]{1,60})",
        meaning="NCCL could not connect to {host} ({why}).",
        fix=_FIRST + " If none has one: " + _INTERFACE,
        example="socketPollConnect: connect to 10.1.0.7<51234> returned Connection timed out, "
        "exceeded error retry count (35)",
        origin="recalled: src/misc/socket.cc of NCCL 2.23, as torch prints it under `Last error:`",
        weight=0.6,
    ),
    Signature(
        id="nccl-illegal-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="Cuda failure",
        pattern=r"(?:NCCL WARN .{0,80}?|^(?:Last error: ?)?)Cuda failure (?:\d{1,9} )?'an illegal "
        r"memory access",
        meaning="A GPU kernel accessed invalid memory; NCCL was the first to notice.",
        fix="`CUDA_LAUNCH_BLOCKING=1` shows the line; look at custom kernels and indices.",
        example="node01:30630:30661 [3] init.cc:1501 NCCL WARN Cuda failure 'an illegal memory "
        "access was encountered'",
        origin="source: src/include/checks.h of NCCL 2.18 and CUDA's own text",
        weight=0.8,
    ),
    Signature(
        id="nccl-call-returned",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN Call to ",
        pattern=r"NCCL WARN Call to (?P<call>\w{1,40}) (?:from \S{1,60} to \S{1,60} )?returned "
        r"(?P<reason>[A-Z][\w ]{3,60})",
        meaning="A system call of NCCL failed ({call}: {reason}).",
        fix="If another rank ended before, that is the cause. Else look at NCCL_SOCKET_IFNAME, and "
        "open all ports between the hosts.",
        example="node01:30630:30661 [3] include/socket.h:390 NCCL WARN Call to connect returned "
        "Connection refused",
        origin="recalled: src/include/socket.h of NCCL 2.7",
        weight=0.6,
    ),
    Signature(
        id="nccl-no-path-to-network",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="Could not find any local path from gpu",
        pattern=r"NCCL WARN Could not find any local path from gpu (?P<gpu>\d{1,4}) to net",
        meaning="NCCL found no path from GPU {gpu} to a network card.",
        fix="Look at the container: /sys must show the PCI topology. NCCL_TOPO_FILE gives NCCL "
        "one.",
        example="node01:30630:30661 [3] graph/search.cc:910 NCCL WARN Could not find any local "
        "path "
        "from gpu 3 to net.",
        origin="recalled: src/graph of NCCL 2.18",
        weight=0.8,
    ),
    Signature(
        id="nccl-test-failed",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Test NCCL failure ",
        pattern=r"\bTest NCCL failure \S{1,80}:\d{1,6} '(?P<reason>[^']{1,160})",
        meaning="A call of NCCL failed in nccl-tests: {reason}.",
        fix="Run it with NCCL_DEBUG=WARN, which says why.",
        example="node01: Test NCCL failure common.cu:958 'unhandled system error'",
        origin="recalled: src/common.cu of nccl-tests 2.13",
        weight=0.6,
    ),
    Signature(
        id="rccl-hip-failure",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN ",
        pattern=r"NCCL WARN (?:HIP|ROCr) failure '(?P<what>[^']{1,120})'",
        meaning="A HIP call of RCCL failed ({what}).",
        fix="Read it as HIP's own error: `rocm-smi`, `dmesg`; each rank must "
        "`torch.cuda.set_device(local_rank)` first.",
        example="node01:412:430 [3] init.cc:1501 NCCL WARN HIP failure 'invalid device ordinal'",
        origin="source: src/include/checks.h and rocmwrap.h of RCCL 2.20",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-nvls-not-bound",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="Failed to bind NVLink SHARP (NVLS) Multicast memory",
        pattern=r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory of size \d{1,20}",
        meaning="NCCL could not use the multicast of the NVLink switches: the fabric manager or "
        "the "
        "switches are not set up, or the container may not use them.",
        fix="Set `NCCL_NVLS_ENABLE=0`, and let the administrator look at the fabric manager "
        "(`systemctl status nvidia-fabricmanager`).",
        example="NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : "
        "CUDA error 401 'the operation cannot be performed in the present state'",
        origin="source: src/transport/nvls.cc of NCCL 2.27",
        weight=0.9,
    ),
)
