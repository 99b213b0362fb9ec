"""Why ranks do not meet, in the words of sockets, ssh, older torch and scripts that read the
environment themselves."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_START = (
    "Start the script with `torchrun`, which sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT."
)
_RESOLVE = (
    "`getent hosts NAME` must work on every host; else use the address of rank 0's host as "
    "MASTER_ADDR."
)
_MEET = (
    "Check that rank 0 runs, that MASTER_ADDR and MASTER_PORT are the same everywhere, and that no "
    "firewall closes the port (`nc -vz HOST PORT`)."
)
_SSH = (
    "`ssh HOST true` must work from the launching host to each other one without a question: copy "
    "the key (`ssh-copy-id`), add the host to known_hosts."
)


def _unmet(
    name: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    fix: str,
    example: str,
    origin: str,
    code: str = "failed-rendezvous",
    role: Role = Role.CAUSE,
    weight: float = 0.7,
    least: int = 1,
    needle_tells: bool = True,
    overcome_by: tuple[str, ...] = (),
) -> Signature:
    """A connection between hosts or ranks that did not come about."""
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
        least=least,
        needle_tells=needle_tells,
        overcome_by=overcome_by,
    )


SIGNATURES: tuple[Signature, ...] = (
    _unmet(
        "environment-key-missing",
        "KeyError: '",
        r"^KeyError: '(?P<variable>RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|SLURM_PROCID|"
        r"SLURM_LOCALID|OMPI_COMM_WORLD_RANK|OMPI_COMM_WORLD_LOCAL_RANK)'$",
        meaning="The script reads {variable} from its environment, and no launcher set it.",
        fix=_START,
        example="KeyError: 'LOCAL_RANK'",
        origin="made: a script that reads os.environ['LOCAL_RANK'], Python 3.11",
        weight=0.9,
        needle_tells=False,
    ),
    _unmet(
        "init-method-parameter-missing",
        " rendezvous: ",
        r"Error initializing torch\.distributed using \w{1,10}:// rendezvous: (?P<what>\w{1,20}) "
        r"parameter missing",
        meaning="`init_process_group` was given an address without the {what} of this process.",
        fix="Pass `rank=` and `world_size=`, or use `env://` under `torchrun`.",
        example="ValueError: Error initializing torch.distributed using tcp:// rendezvous: rank "
        "parameter missing",
        origin="source: torch/distributed/rendezvous.py of torch 2.13",
        weight=0.9,
        needle_tells=False,
    ),
    _unmet(
        "init-method-unknown",
        "No rendezvous handler for ",
        r"No rendezvous handler for \S{0,40}",
        meaning="The `init_method` has no known scheme.",
        fix="Write `env://`, `tcp://HOST:PORT` or `file:///PATH`.",
        example="RuntimeError: No rendezvous handler for ://",
        origin="source: torch/distributed/rendezvous.py of torch 2.13",
        weight=0.85,
    ),
    _unmet(
        "init-file-refused",
        "RuntimeError: open(",
        r"\bRuntimeError: open\((?P<path>[^)]{1,200})\): (?P<what>Permission denied|No such file "
        r"or directory|Read-only file system)",
        meaning="The file {path} through which the ranks meet cannot be opened ({what}).",
        fix="Use a path on a shared file system that all ranks may write, or `env://`.",
        example="RuntimeError: open(/somewhere/sync): Permission denied",
        origin="recalled: torch/lib/c10d/FileStore.cpp of torch 1.5",
        weight=0.9,
        needle_tells=False,
    ),
    _unmet(
        "init-file-refused-native",
        "  open(",
        r"^\W{0,6}what\(\): {1,3}open\((?P<path>[^)]{1,200})\): (?P<what>Permission denied|No such "
        r"file or directory|Read-only file system)",
        meaning="The file {path} through which the ranks meet cannot be opened ({what}).",
        fix="Use a path on a shared file system that all ranks may write, or `env://`.",
        example="  what():  open(/somewhere/sync): Permission denied",
        origin="recalled: torch/lib/c10d/FileStore.cpp of torch 1.5",
        weight=0.6,
        needle_tells=False,
    ),
    _unmet(
        "connection-failed-bare",
        "Error: ",
        r"^(?:Runtime|Value)Error: (?P<what>Connection (?:timed out|refused)|No route to "
        r"host|host not found: "
        r".{1,80}|Name or service not known|Network is unreachable|Interrupted system call)\.?\s*$",
        meaning="A rank could not connect to another one ({what}).",
        fix=_MEET,
        example="RuntimeError: Connection timed out",
        origin="recalled: torch/lib/c10d/Utils.hpp of torch 1.5",
        role=Role.SYMPTOM,
        weight=0.6,
        needle_tells=False,
    ),
    _unmet(
        "name-not-resolved",
        "gaierror: ",
        r"\bsocket\.gaierror: \[Errno -?\d{1,3}\] (?P<what>.{1,60})",
        meaning="The name of a host could not be resolved: {what}.",
        fix=_RESOLVE,
        example="socket.gaierror: [Errno -3] Temporary failure in name resolution",
        origin="made: socket.getaddrinfo of an unknown host, Python 3.11",
        role=Role.SYMPTOM,
        weight=0.6,
        needle_tells=False,
    ),
    _unmet(
        "name-not-looked-up",
        "nslookup: can't resolve '",
        r"^nslookup: can't resolve '(?P<host>(?!\(null\))[\w.-]{1,253})'",
        meaning="The name {host} is unknown on this host.",
        fix=_RESOLVE,
        example="nslookup: can't resolve 'trainer-master-0': Name does not resolve",
        origin="recalled: networking/nslookup.c of BusyBox 1.30",
        role=Role.SYMPTOM,
        weight=0.55,
        needle_tells=False,
    ),
    _unmet(
        "windows-port-in-use",
        "Only one usage of each socket address",
        r"Only one usage of each socket address",
        meaning="The port is taken: an earlier run still holds it.",
        fix="`netstat -ano` shows who holds it. Use another `--master-port`.",
        example="OSError: [WinError 10048] Only one usage of each socket address (protocol/network "
        "address/port) is normally permitted",
        origin="recalled: the system messages of Windows 10",
        code="failed-port-in-use",
        weight=0.9,
    ),
    _unmet(
        "grpc-no-address",
        "No address added out of total",
        r"\"description\": ?\"No address added out of total \d",
        meaning="A gRPC server could not use its port: another process holds it.",
        fix="`ss -ltnp` shows who holds it; use other ports in the cluster's addresses.",
        example='{"created":"@1552","description":"No address added out of total 1 resolved"}',
        origin="recalled: chttp2_server.cc of gRPC 1.16",
        code="failed-port-in-use",
    ),
    _unmet(
        "gloo-no-device",
        "unsupported gloo device",
        r"\bmakeDeviceFor\w{1,20}\(\): unsupported gloo device",
        meaning="gloo found no network interface that it can use for this host's name.",
        fix="Set GLOO_SOCKET_IFNAME to the interface that reaches the other hosts; the host's name "
        "must resolve to its address.",
        example="RuntimeError: makeDeviceForHostname(): unsupported gloo device",
        origin="source: strings in the library of torch 2.13",
        code="failed-gloo",
        weight=0.9,
    ),
    _unmet(
        "launcher-signal-term",
        "SignalException: Process ",
        r"SignalException: Process \d{1,10} got signal: 15\b",
        meaning="torchrun was asked to end with SIGTERM.",
        fix="Ask the scheduler who sent it (`sacct`, `kubectl describe pod`).",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got "
        "signal: 15",
        origin="source: torch/distributed/elastic/multiprocessing/api.py of torch 2.13",
        code="failed-killed",
        role=Role.SYMPTOM,
        weight=0.4,
        needle_tells=False,
    ),
    _unmet(
        "launcher-signal-hangup",
        "SignalException: Process ",
        r"SignalException: Process \d{1,10} got signal: 1$",
        meaning="torchrun was ended by SIGHUP: the terminal or ssh session that it was started "
        "from "
        "was closed.",
        fix="Start it in tmux, with `nohup` or as a batch job.",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got "
        "signal: 1",
        origin="source: torch/distributed/elastic/multiprocessing/api.py of torch 2.13",
        code="failed-hangup",
        needle_tells=False,
    ),
    _unmet(
        "client-socket-refused-family",
        "The client socket cannot be initialized to connect to",
        r"Error: The client socket cannot be initialized to connect to "
        r"\[?(?P<host>[\w.:-]{1,200}\b)",
        meaning="Rank 0's address {host} cannot be reached with the addresses of this host.",
        fix=_MEET,
        example="torch.distributed.DistNetworkError: The client socket cannot be initialized to "
        "connect to [localhost]:29500 (errno: 97 - Address family not supported by protocol).",
        origin="recalled: torch/csrc/distributed/c10d/socket.cpp of torch 2",
        role=Role.SYMPTOM,
        needle_tells=False,
    ),
    _unmet(
        "client-socket-timed-out-log",
        "The client socket has timed out after ",
        r"\[c10d\] The client socket has timed out after (?P<time>\d{1,9} ?m?s) while trying to "
        r"connect to \((?P<host>[^,\s]{1,255}), (?P<port>\d{1,5})\)",
        meaning="Nobody answered at {host}:{port}, where rank 0 should listen.",
        fix=_MEET,
        example="[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying "
        "to connect to (node01, 29500).",
        origin="source: strings in the library of torch 2.13",
        role=Role.SYMPTOM,
        needle_tells=False,
    ),
    _unmet(
        "client-socket-fails-repeatedly",
        "[c10d] The client socket has failed to connect to ",
        r"\[c10d\] The client socket has failed to connect to \S{1,200} \(errno: (?:110|113) - "
        r"(?P<what>[A-Z][a-z ]{4,40})\)",
        meaning="Rank 0's store cannot be reached ({what}).",
        fix=_MEET,
        example="[W socket.cpp:601] [c10d] The client socket has failed to connect to "
        "[node01]:29500 (errno: 110 - Connection timed out).",
        origin="source: strings in the library of torch 2.13",
        role=Role.SYMPTOM,
        weight=0.6,
        least=2,
    ),
    _unmet(
        "store-barrier-waits",
        "Waiting in store based barrier to initialize process group",
        r"Waiting in store based barrier to initialize process group for rank: "
        r"(?P<waiting>\d{1,7})\b",
        meaning="Rank {waiting} waits for the other ranks to join the process group. The counts in "
        "the line that are more or fewer than the world size tell whether ranks are missing, or "
        "whether ranks of an earlier attempt were counted too.",
        fix="Start exactly as many processes as the world size, each with its own rank. More "
        "workers than the world size: end the processes of earlier attempts and use another port.",
        example="INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to "
        "initialize process group for rank: 1, key: store_based_barrier_key:1 (world_size=2, "
        "worker_count=1, timeout=0:30:00)",
        origin="source: torch/distributed/distributed_c10d.py of torch 1.10",
        role=Role.SYMPTOM,
        weight=0.6,
        least=2,
        overcome_by=("Completed store-based barrier",),
    ),
    _unmet(
        "address-bind-refused",
        "The server socket has failed to ",
        r"\[c10d\] The server socket has failed to (?:bind to|listen on) "
        r"(?:\S{1,200}:(?P<port>\d{1,5})|"
        r"\?UNKNOWN\?) \(errno: (?:98|48|10048) - [Aa]ddress already in use\)",
        meaning="The port is taken: an earlier run still holds it, or another job on this host "
        "uses the same one.",
        fix="`ss -ltnp 'sport = :PORT'` shows who holds it. Use another `--master-port` or "
        "`--rdzv-endpoint=localhost:0`.",
        example="[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 "
        "(errno: 98 - Address already in use).",
        origin="source: strings in the library of torch 2.13",
        code="failed-port-in-use",
        weight=0.75,
        needle_tells=False,
    ),
    _unmet(
        "port-not-permitted",
        "The server socket has failed to ",
        r"The server socket has failed to (?:bind|listen).{0,300}?(?:EACCES|errno: "
        r"13\b|[Pp]ermission "
        r"denied)",
        meaning="This user may not listen on that port: those below 1024 are for root.",
        fix="Use a `--master-port` above 1024.",
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on any "
        "local network address. port: 80, useIpv6: false, code: -13, name: EACCES, message: "
        "permission denied",
        origin="source: strings in the library of torch 2.13",
        code="failed-permission",
        weight=0.95,
        needle_tells=False,
    ),
    _unmet(
        "ssh-host-refused",
        "ssh exited with exit code 255",
        r"\bpdsh@[\w.-]{1,200}: (?P<host>[\w.-]{1,200}): ssh exited with exit code 255",
        meaning="The launcher could not log in to {host}.",
        fix=_SSH,
        example="pdsh@node1: node2: ssh exited with exit code 255",
        origin="recalled: src/modules/sshcmd.c of pdsh 2",
        weight=0.85,
    ),
    _unmet(
        "ssh-key-refused",
        "Permission denied (",
        r"Permission denied \((?:publickey|password|keyboard-interactive|gssapi|hostbased)",
        meaning="The launcher could not log in to a host with ssh.",
        fix=_SSH,
        example="root@node2: Permission denied (publickey,password).",
        origin="recalled: sshconnect2.c of OpenSSH 9",
        weight=0.85,
        needle_tells=False,
    ),
    _unmet(
        "ssh-host-unknown",
        "Host key verification failed",
        r"^(?:[\w.-]{1,200}: )?Host key verification failed\.",
        meaning="The launcher could not log in to a host: its key is unknown or has changed.",
        fix=_SSH,
        example="Host key verification failed.",
        origin="recalled: sshconnect.c of OpenSSH 9",
        weight=0.85,
    ),
    _unmet(
        "ssh-name-unknown",
        "ssh: Could not resolve hostname",
        r"ssh: Could not resolve hostname (?P<host>[\w.-]{1,200})",
        meaning="The launcher does not know the address of {host}.",
        fix=_RESOLVE,
        example="ssh: Could not resolve hostname worker-1: Name or service not known",
        origin="recalled: ssh.c of OpenSSH 9",
        weight=0.85,
    ),
    _unmet(
        "deepspeed-no-pdsh",
        "launcher 'pdsh' not installed",
        r"launcher 'pdsh' not installed",
        meaning="DeepSpeed starts ranks on other hosts with pdsh, which is not installed.",
        fix="Install pdsh, or use `--launcher openmpi`, `slurm` or `torchrun` on each host.",
        example="RuntimeError: launcher 'pdsh' not installed.",
        origin="source: deepspeed/launcher/runner.py of DeepSpeed 0.16",
        weight=0.9,
    ),
    _unmet(
        "rendezvous-heartbeat-failed",
        "has failed to send a keep-alive heartbeat to the rendezvous",
        r"has failed to send a keep-alive heartbeat to the rendezvous .{0,80}?due to an error",
        meaning="torchrun on this host lost the host that runs the rendezvous.",
        fix="Look at the first host: its torchrun or the network to it failed first.",
        example="The node 'node2_4711_0' has failed to send a keep-alive heartbeat to the "
        "rendezvous 'none' due to an error of type RendezvousConnectionError.",
        origin="source: torch/distributed/elastic/rendezvous of torch 2.13",
        role=Role.SYMPTOM,
        weight=0.55,
    ),
)
