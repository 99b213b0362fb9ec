"""NCCL's connections between ranks: sockets, InfiniBand, and partners that are gone."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_INTERFACE = (
    "Set `NCCL_SOCKET_IFNAME` to the interface that the hosts share (`ip -br addr`), open all "
    "ports between them, and run with `NCCL_DEBUG=INFO` to see what NCCL chose."
)
_FIRST = "Look for the first error of another rank, on every host: this one only lost its partner."
_NETWORK = (
    "If another rank ended before, that is the cause. Otherwise set NCCL_SOCKET_IFNAME to the "
    "interface that reaches all hosts, and open all ports between them."
)

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
        fix="Look at rank 0: it ended, never reached its first collective, or is far behind.",
        example="torch.distributed.DistBackendError: [3] is setting up NCCL communicator and "
        "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
        "store->get('0') got error: Connection reset by peer",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12",
        weight=0.55,
        more_heads=("ncclUniqueId from [0] via c10d key-value store",),
    ),
    Signature(
        id="nccl-checked-in",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="ranks has already checked in",
        pattern=r"Bootstrap Root ?: rank (?P<rank>\d{1,6}) of (?P<ranks>\d{1,6}) ranks has "
        r"already checked in",
        meaning="Two processes say that they are rank {rank}: the ranks are numbered twice, or an "
        "older run still lives.",
        fix="Print RANK and WORLD_SIZE on every host; `--node-rank` must differ. End processes of "
        "older runs.",
        example="node01:69:85 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 3 of 16 ranks "
        "has already checked in",
        origin="recalled: src/bootstrap.cc of NCCL 2.10",
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
        id="nccl-call-reset",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN Call to ",
        pattern=r"NCCL WARN Call to (?P<call>read|recv|write|send|connect) failed ?: "
        r"(?P<why>[A-Z][a-z ]{1,60})",
        meaning="NCCL's connection to another rank broke ({call}: {why}).",
        fix="Look for the first error of another rank, on every host: this one only lost its "
        "partner.",
        example="node01:15:91 [2] include/socket.h:403 NCCL WARN Call to recv failed : Connection "
        "reset by peer",
        origin="recalled: src/include/socket.h of NCCL 2.7",
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
        id="nccl-connect-aborted",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN socket",
        pattern=r"NCCL WARN socket(?:Start|Poll|Finalize)Connect: [Cc]onnect to "
        r"(?P<host>\S{1,255}) (?:failed ?:|returned) (?P<why>Software caused connection abort|"
        r"Connection reset by peer|Cannot assign requested address|Invalid argument)",
        meaning="NCCL could not connect to {host} ({why}).",
        fix="Set `NCCL_SOCKET_IFNAME` to the interface that the hosts share (`ip -br addr`).",
        example="node01:39:75 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to "
        "192.0.2.7<40001> failed : Software caused connection abort",
        origin="recalled: src/misc/socket.cc of NCCL 2.19",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-proxy-connect",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN [",
        pattern=r"NCCL WARN \[(?:Service thread|Proxy Service ?\d{0,6})\] (?:Error encountered "
        r"progressing operation=|Failed to execute operation )(?P<operation>\w{1,40})",
        meaning="NCCL's helper thread could not {operation}: the other side closed the connection "
        "or cannot be reached.",
        fix="Look for the first error of another rank. If none has one, check "
        "`NCCL_SOCKET_IFNAME` and the firewall between the hosts.",
        example="node01:811:902 [3] proxy.cc:1485 NCCL WARN [Service thread] Error encountered "
        "progressing operation=Connect, res=3, closing connection",
        origin="recalled: src/proxy.cc of NCCL 2.19",
        weight=0.5,
    ),
    Signature(
        id="nccl-socket-call-failed",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN socket",
        pattern=r"NCCL WARN socket\w{1,30}: Call to (?P<call>\w{1,20}) (?:from|to) "
        r"(?P<peer>\S{1,80}) failed ?: (?P<reason>[A-Z][\w ]{3,60})",
        meaning="NCCL's connection to {peer} broke ({reason}).",
        fix=_NETWORK,
        example="node01:4711:4790 [0] misc/socket.cc:503 NCCL WARN socketProgressOpt: Call to "
        "recv from 10.0.0.5<43251> failed : Connection timed out",
        origin="source: src/misc/socket.cc of NCCL 2.32",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-socket-gave-up",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN socket",
        pattern=r"NCCL WARN socket(?:StartConnect|PollConnect|Connect|ConnectCheck)\w{0,10}: "
        r"exceeded (?:timeout|error retry|retries|number of)",
        meaning="NCCL could not connect to another rank.",
        fix=_NETWORK,
        example="worker-0:64:1423 [0] misc/socket.cc:538 NCCL WARN socketStartConnect: exceeded "
        "timeout (20000) sec",
        origin="recalled: src/misc/socket.cc of NCCL 2.18",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="nccl-last-retry",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle=") after sleep for ",
        pattern=r"socket\w{1,20}Connect\w{0,10}: connect (?:to (?P<host>\S{1,255}) )?returned "
        r"(?P<why>[A-Z][a-z ]{1,60}), retrying \(34/34\) after sleep",
        meaning="NCCL failed to connect to another rank ({why}) 34 times, which is its default.",
        fix=_NETWORK,
        example="node01:66:79 [0] NCCL INFO socketPollConnect: connect to 10.1.0.7<51234> returned "
        "No route to host, retrying (34/34) after sleep for 3400 msec",
        origin="source: src/misc/socket.cc of NCCL",
        weight=0.6,
        needle_tells=False,
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
        "path from gpu 3 to net.",
        origin="recalled: src/graph of NCCL 2.18",
        weight=0.8,
    ),
    Signature(
        id="nccl-ib-completion",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Got completion from peer",
        pattern=r"NCCL WARN NET/IB ?: Got completion from peer (?P<host>\S{1,255}) with (?:error|"
        r"status=) ?(?:\w+\()?(?P<status>\d+)",
        meaning="A transfer over InfiniBand or RoCE to {host} failed with status {status}. 12 "
        "means no answer (a bad link, or the rank there died); 4 and 5 follow after that.",
        fix="If a rank on that host ended first, that is the cause. Otherwise check the link "
        "(`ibstat`, `ibv_devinfo`, `perfquery`), the switch and the GID (`NCCL_IB_GID_INDEX`, RoCE "
        "v2); `NCCL_IB_TIMEOUT=22` bears short outages.",
        example="node01:984:1357 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion "
        "from peer 10.0.0.7<44206> with error 12, opcode 1, len 0, vendor err 129 (Send)",
        origin="source: src/transport/net_ib.cc of NCCL 2.18",
        weight=0.65,
        needle_tells=False,
    ),
    Signature(
        id="nccl-ib-completion-old",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Got completion with error",
        pattern=r"NET/IB ?: Got completion with error (?P<status>\d{1,4})\b",
        meaning="An InfiniBand transfer failed with status {status}: 12 means that the other side "
        "did not answer.",
        fix="Look for the first error of another rank. If none has one, check the link: `ibstat`, "
        "`ibqueryerrors`; `NCCL_IB_TIMEOUT=22` bridges short interruptions.",
        example="node01:73:95 [0] transport/net_ib.cc:845 NCCL WARN NET/IB : Got completion with "
        "error 12, opcode 129, len 0, vendor err 129",
        origin="recalled: src/transport/net_ib.cc of NCCL 2.10",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-ib-call",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="Call to ibv_",
        pattern=r"NCCL WARN .{0,80}?Call to (?P<call>ibv_(?:reg_mr\w{0,40}|create_qp|create_cq|"
        r"modify_qp|alloc_pd|open_device)) failed(?: with (?:error )?(?P<why>.{1,80}))?",
        meaning="InfiniBand could not be set up ({call} failed).",
        fix="Allow locked memory (`ulimit -l unlimited`, Docker `--ulimit memlock=-1`), check the "
        "ports (`ibstat`) and for RoCE the GID index. `NCCL_IB_DISABLE=1` shows whether the rest "
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
        id="nccl-ib-event-old",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle=" Got async event : ",
        pattern=r"NCCL WARN NET/IB : (?:\w{1,20}:\d{1,3} )?Got async event : (?P<event>port error|"
        r"device fatal|QP fatal|local catastrophic error|LID change|client reregistration)",
        meaning="The InfiniBand adapter reported an event that breaks connections ({event}).",
        fix="Check the adapter and its cable on that host (`ibstat`, `dmesg | grep mlx5`).",
        example="node01:45:128 [2] transport/net_ib.cc:74 NCCL WARN NET/IB : Got async event : "
        "port error",
        origin="recalled: src/transport/net_ib.cc of NCCL 2.10",
        weight=0.7,
        needle_tells=False,
    ),
)
