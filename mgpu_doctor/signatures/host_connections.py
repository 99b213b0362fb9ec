"""Connections between hosts: ports, host names and ssh."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_OTHER_PORT = (
    "Find the holder with `ss -ltnp` and end it, or choose another port: `torchrun --standalone`, "
    "`--master-port`, `MASTER_PORT`."
)
_RESOLVE = (
    "`getent hosts NAME` must work on every host; otherwise use the address of rank 0's host as "
    "MASTER_ADDR."
)
_SSH = (
    "`ssh HOST true` must work from the launching host to each other one without a question: copy "
    "the key (`ssh-copy-id`), add the host to known_hosts."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="port-in-use",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="The server socket has failed to listen on",
        pattern=r"Error: The server socket has failed to listen on any local network address(?:\. "
        r"port: (?P<port>\d+)\b)?.{0,400}?(?:EADDRINUSE|[Aa]ddress already in use)",
        meaning="The port that rank 0 must listen on is taken: an earlier run still holds it, or "
        "another job on this host uses the same one (or two processes of this job are rank 0).",
        fix=_OTHER_PORT,
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on "
        "any local network address. port: 39971, useIpv6: false, code: -98, name: EADDRINUSE, "
        "message: address already in use",
        origin="made: init_process_group on a port that another socket listens on, torch 2.13",
        weight=0.95,
        more_heads=("The server socket has failed to listen",),
    ),
    Signature(
        id="port-in-use-old",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="ddress already in use",
        pattern=r"(?:RuntimeError: |OSError: \[Errno (?:98|48)\] |ZMQError: )Address already in "
        r"use|error while attempting to bind on address .{1,80}?: address already in use|"
        r"EADDRINUSE: address already in use",
        meaning="A port that the process must listen on is taken: an earlier run still holds it, "
        "or another job on this host uses the same one.",
        fix=_OTHER_PORT,
        example="RuntimeError: Address already in use",
        origin="source: torch/csrc/distributed/c10d/TCPStore.cpp of torch 1.10",
        weight=0.8,
        needle_tells=False,
        more_heads=("Address already in use",),
    ),
    Signature(
        id="windows-port-in-use",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="Only one usage of each socket address",
        pattern=r"Only one usage of each socket address",
        meaning="The port is taken: an earlier run still holds it.",
        fix="`netstat -ano` shows who holds it. Use another `--master-port`.",
        example="OSError: [WinError 10048] Only one usage of each socket address "
        "(protocol/network address/port) is normally permitted",
        origin="recalled: the system messages of Windows 10",
    ),
    Signature(
        id="grpc-port-in-use",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle='"os_error":"Address already in use"',
        pattern=r'"os_error":"Address already in use"',
        meaning="The port of this task's server is taken.",
        fix="Another process listens there, often one that an earlier run left: `ss -ltnp`. End "
        "it, or choose another port in TF_CONFIG.",
        example='E0101 10:00:00.1 server_chttp2.cc:40] {"description":"OS '
        'Error","errno":98,"os_error":"Address already in use","syscall":"bind"}',
        origin="recalled: gRPC as of TensorFlow 1.15",
    ),
    Signature(
        id="grpc-no-address",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="No address added out of total",
        pattern=r"\"description\": ?\"No address added out of total \d",
        meaning="A gRPC server could not use its port: another process holds it.",
        fix="`ss -ltnp` shows who holds it; use other ports in the cluster's addresses.",
        example='{"created":"@1552","description":"No address added out of total 1 resolved"}',
        origin="recalled: chttp2_server.cc of gRPC 1.16",
        weight=0.7,
    ),
    Signature(
        id="address-bind-refused",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="The server socket has failed to ",
        pattern=r"\[c10d\] The server socket has failed to (?:bind to|listen on) (?:\S{1,200}:"
        r"(?P<port>\d{1,5})|\?UNKNOWN\?) \(errno: (?:98|48|10048) - [Aa]ddress already in use\)",
        meaning="The port is taken: an earlier run still holds it, or another job on this host "
        "uses the same one.",
        fix="`ss -ltnp 'sport = :PORT'` shows who holds it. Use another `--master-port` or "
        "`--rdzv-endpoint=localhost:0`.",
        example="[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 "
        "(errno: 98 - Address already in use).",
        origin="source: strings in the library of torch 2.13",
        weight=0.75,
        needle_tells=False,
    ),
    Signature(
        id="port-not-permitted",
        code="failed-permission",
        role=Role.CAUSE,
        needle="The server socket has failed to ",
        pattern=r"The server socket has failed to (?:bind|listen).{0,300}?(?:EACCES|errno: 13\b|"
        r"[Pp]ermission denied)",
        meaning="This user may not listen on that port: those below 1024 are for root.",
        fix="Use a `--master-port` above 1024.",
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on "
        "any local network address. port: 80, useIpv6: false, code: -13, name: EACCES, message: "
        "permission denied",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="name-not-resolved",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="gaierror: ",
        pattern=r"\bsocket\.gaierror: \[Errno -?\d{1,3}\] (?P<what>.{1,60})",
        meaning="The name of a host could not be resolved: {what}.",
        fix=_RESOLVE,
        example="socket.gaierror: [Errno -3] Temporary failure in name resolution",
        origin="made: socket.getaddrinfo of an unknown host, Python 3.11",
        weight=0.6,
    ),
    Signature(
        id="name-not-looked-up",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="nslookup: can't resolve '",
        pattern=r"^nslookup: can't resolve '(?P<host>(?!\(null\))[\w.-]{1,253})'",
        meaning="The name {host} is unknown on this host.",
        fix=_RESOLVE,
        example="nslookup: can't resolve 'trainer-master-0': Name does not resolve",
        origin="recalled: networking/nslookup.c of BusyBox 1.30",
        weight=0.55,
        needle_tells=False,
    ),
    Signature(
        id="ssh-refused",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="ssh: connect to host ",
        pattern=r"ssh: connect to host (?P<host>\S{1,128}) port (?P<port>\d+): (?P<reason>[\w ]+)",
        meaning="The launcher could not reach {host} with ssh: {reason}.",
        fix="`ssh {host} true` must work without a question from the host that launches.",
        example="ssh: connect to host node2 port 22: Connection refused",
        origin="source: sshconnect.c of OpenSSH 9.2",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="ssh-host-refused",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="ssh exited with exit code 255",
        pattern=r"\bpdsh@[\w.-]{1,200}: (?P<host>[\w.-]{1,200}): ssh exited with exit code 255",
        meaning="The launcher could not log in to {host}.",
        fix=_SSH,
        example="pdsh@node1: node2: ssh exited with exit code 255",
        origin="recalled: src/modules/sshcmd.c of pdsh 2",
        weight=0.85,
    ),
    Signature(
        id="ssh-key-refused",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="Permission denied (",
        pattern=r"Permission denied \((?:publickey|password|keyboard-interactive|gssapi|hostbased)",
        meaning="The launcher could not log in to a host with ssh.",
        fix=_SSH,
        example="root@node2: Permission denied (publickey,password).",
        origin="recalled: sshconnect2.c of OpenSSH 9",
        weight=0.85,
    ),
    Signature(
        id="ssh-host-unknown",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="Host key verification failed",
        pattern=r"^(?:[\w.-]{1,200}: )?Host key verification failed\.",
        meaning="The launcher could not log in to a host: its key is unknown or has changed.",
        fix=_SSH,
        example="Host key verification failed.",
        origin="recalled: sshconnect.c of OpenSSH 9",
        weight=0.85,
    ),
    Signature(
        id="ssh-name-unknown",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="ssh: Could not resolve hostname",
        pattern=r"ssh: Could not resolve hostname (?P<host>[\w.-]{1,200})",
        meaning="The launcher does not know the address of {host}.",
        fix=_RESOLVE,
        example="ssh: Could not resolve hostname worker-1: Name or service not known",
        origin="recalled: ssh.c of OpenSSH 9",
        weight=0.85,
    ),
    Signature(
        id="deepspeed-no-pdsh",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="launcher 'pdsh' not installed",
        pattern=r"launcher 'pdsh' not installed",
        meaning="DeepSpeed starts ranks on other hosts with pdsh, which is not installed.",
        fix="Install pdsh, or use `--launcher openmpi`, `slurm` or `torchrun` on each host.",
        example="RuntimeError: launcher 'pdsh' not installed.",
        origin="source: deepspeed/launcher/runner.py of DeepSpeed 0.16",
    ),
)
