"""Ranks that do not find each other, or lose the store at which they meet: torch and torchrun."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_MEET = (
    "Check that rank 0's process runs, that MASTER_ADDR names its host (not localhost on the other "
    "hosts), that MASTER_PORT is the same everywhere and that no firewall blocks it: `nc -zv "
    "$MASTER_ADDR $MASTER_PORT` from the other hosts."
)
_STORE_LOST = (
    "Look at rank 0 (or the launcher that hosts the store): what it printed just before is the "
    "cause."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="clients-missing",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle=" waiting for clients. ",
        pattern=r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/"
        r"(?P<expected>\d+) clients joined",
        meaning="Only {joined} of {expected} ranks reached the store within {seconds} s.",
        fix="See which rank never started or died first; start as many processes as WORLD_SIZE "
        "says. " + _MEET,
        example="torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. "
        "1/2 clients joined.",
        origin="made: rank 0 of 2 started alone, torch 2.13",
        weight=0.7,
        needle_tells=False,
        more_heads=("DistStoreError: Timed out after",),
    ),
    Signature(
        id="master-unreachable",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="The client socket has timed out after",
        pattern=r"Error: The client socket has timed out after (?P<milliseconds>\d+)(?:ms|s)? "
        r"while trying to connect to \((?P<host>[^,\s]{1,255}), (?P<port>\d+)\)",
        meaning="Nobody answered at {host}:{port}, where rank 0 should listen.",
        fix=_MEET,
        example="torch.distributed.DistNetworkError: The client socket has timed out after 3000ms "
        "while trying to connect to (127.0.0.1, 55545).",
        origin="made: rank 1 without rank 0, torch 2.13",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="master-unreachable-old",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="connect() timed out.",
        pattern=r"RuntimeError: connect\(\) timed out\.",
        meaning="Nobody answered where rank 0 should listen (MASTER_ADDR, MASTER_PORT).",
        fix=_MEET,
        example="RuntimeError: connect() timed out. Original timeout was 1800000 ms.",
        origin="source: torch/csrc/distributed/c10d/Utils.cpp of torch 1.10",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="master-refuses",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="The client socket has failed to connect to",
        pattern=r"Error: The client socket has failed to connect to any network address of \("
        r"(?P<host>[^,\s]{1,255}), (?P<port>\d+)\)",
        meaning="The connection to {host}:{port}, where rank 0 should listen, was refused.",
        fix=_MEET,
        example="RuntimeError: The client socket has failed to connect to any network address of "
        "(node01, 29500). The client socket has failed to connect to 10.0.0.1:29500 (errno: 111 - "
        "Connection refused).",
        origin="source: torch/csrc/distributed/c10d/socket.cpp of torch 2.0",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="store-wait-timeout",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="wait timeout after ",
        pattern=r"Error: wait timeout after (?P<milliseconds>\d+)ms, keys: (?P<key>.{1,200})",
        meaning="This rank waited {milliseconds} ms at the store for what another rank should have "
        "written ({key}): the other has not written it so far.",
        fix="See which rank is missing, slow or dead; a longer limit: `init_process_group(..., "
        "timeout=timedelta(minutes=60))`.",
        example="torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /nokey",
        origin="made: TCPStore.get of a key that nobody sets, torch 2.13",
        weight=0.6,
        needle_tells=False,
        more_heads=("DistStoreError: wait timeout after",),
    ),
    Signature(
        id="store-socket-timeout",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="Error: Socket Timeout",
        pattern=r"(?:DistStoreError|RuntimeError|TimeoutError): Socket Timeout",
        meaning="This rank waited at the store for what another rank should have written: the "
        "other has not written it so far.",
        fix="See which rank is missing, slow or dead. " + _MEET,
        example="torch.distributed.DistStoreError: Socket Timeout",
        origin="source: torch/csrc/distributed/c10d/TCPStore.cpp of torch 2.4",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="store-timeout-old",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="Timed out initializing process group in store based barrier",
        pattern=r"Timed out initializing process group in store based barrier on rank:? "
        r"(?P<rank>\d+), for key: (?P<key>\S{1,100}) \(world_size=(?P<expected>\d+), "
        r"(?:worker_count|num_workers_joined)=(?P<joined>\d+)",
        meaning="Only {joined} of {expected} ranks reached the store.",
        fix="See which rank never started or died first; start as many processes as WORLD_SIZE "
        "says. " + _MEET,
        example="RuntimeError: Timed out initializing process group in store based barrier on "
        "rank: 0, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, "
        "timeout=0:30:00)",
        origin="source: torch/distributed/distributed_c10d.py of torch 1.13",
        weight=0.7,
        more_heads=("Timed out initializing process group in store",),
    ),
    Signature(
        id="store-closed",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="recv, got 0 bytes",
        pattern=r"(?:DistNetworkError|RuntimeError): [Ff]ailed to recv, got 0 bytes",
        meaning="The process that hosts the store (rank 0 or its launcher) is gone, or refused "
        "this rank because it started with another world size.",
        fix=_STORE_LOST,
        example="torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was "
        "likely closed. Did the remote server shutdown or crash?",
        origin="made: rank 0 ends while rank 1 waits at the store, torch 2.13",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="store-connection-lost",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="DistNetworkError: ",
        pattern=r"DistNetworkError: (?P<why>Connection reset by peer|Broken pipe|Connection timed "
        r"out|No route to host|Network is unreachable)",
        meaning="The connection to the store broke ({why}): rank 0 or its launcher is gone.",
        fix=_STORE_LOST,
        example="torch.distributed.DistNetworkError: Broken pipe",
        origin="made: rank 0 ends before rank 1 writes to the store, torch 2.13",
        weight=0.5,
    ),
    Signature(
        id="store-connection-lost-old",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="RuntimeError: Connection reset by peer",
        pattern=r"^RuntimeError: Connection reset by peer\.?\s*$",
        meaning="The connection to the store broke: rank 0 or its launcher is gone.",
        fix=_STORE_LOST,
        example="RuntimeError: Connection reset by peer",
        origin="source: torch/csrc/distributed/c10d/Utils.hpp of torch 1.10",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="elastic-rendezvous-timeout",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="RendezvousTimeoutError",
        pattern=r"rendezvous\.api\.RendezvousTimeoutError",
        meaning="torchrun timed out waiting for the other hosts: fewer than `--nnodes` joined.",
        fix="Start torchrun on every host with the same `--rdzv-endpoint`, `--rdzv-id` and "
        "`--nnodes`; a longer wait: `--rdzv-conf join_timeout=1800`.",
        example="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        origin="made: one host of `--nnodes 2`, torch 2.13",
        weight=0.7,
    ),
    Signature(
        id="elastic-rendezvous-closed",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="RendezvousClosedError",
        pattern=r"rendezvous\.api\.RendezvousClosedError",
        meaning="torchrun on this host joined when the job was over or had failed on another host.",
        fix="Look at the host that failed first; use a new `--rdzv-id` for each run.",
        example="torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        origin="source: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py of torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="elastic-store-unreachable",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="RendezvousConnectionError",
        pattern=r"rendezvous\.api\.RendezvousConnectionError: The connection to (?:the )?"
        r"(?P<store>C10d store|etcd) has failed",
        meaning="torchrun could not reach the {store} at `--rdzv-endpoint`, or lost it.",
        fix="Check that the endpoint's host runs torchrun too and that its port is open to this "
        "host; a job that lost it in the middle: look at that host first.",
        example="torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The "
        "connection to the C10d store has failed. See inner exception for details.",
        origin="made: torchrun with an endpoint on which nobody listens, torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="store-name-unknown",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="network addresses of (",
        pattern=r"The (?:IPv[46] )?network addresses of \((?P<host>[\w.-]{1,253}), \d{1,5}\) "
        r"cannot be retrieved \(gai error",
        meaning="The name {host} of the rendezvous is unknown on this host.",
        fix="Correct MASTER_ADDR or `--rdzv-endpoint`; `getent hosts {host}` must work on every "
        "host. Under Kubernetes the name appears once the pod of rank 0 runs.",
        example="The IPv6 network addresses of (node-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
        origin="source: strings in the library of torch 2.13",
        least=3,
        weight=0.6,
    ),
    Signature(
        id="connection-failed-bare",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="Error: ",
        pattern=r"^(?:Runtime|Value)Error: (?P<what>Connection (?:timed out|refused)|No route to "
        r"host|host not found: .{1,80}|Name or service not known|Network is unreachable|"
        r"Interrupted system call)\.?\s*$",
        meaning="A rank could not connect to another one ({what}).",
        fix=_MEET,
        example="RuntimeError: Connection timed out",
        origin="recalled: torch/lib/c10d/Utils.hpp of torch 1.5",
        weight=0.6,
    ),
    Signature(
        id="client-socket-refused-family",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="The client socket cannot be initialized to connect to",
        pattern=r"Error: The client socket cannot be initialized to connect to \[?"
        r"(?P<host>[\w.:-]{1,200}\b)",
        meaning="Rank 0's address {host} cannot be reached with the addresses of this host.",
        fix=_MEET,
        example="torch.distributed.DistNetworkError: The client socket cannot be initialized to "
        "connect to [localhost]:29500 (errno: 97 - Address family not supported by protocol).",
        origin="recalled: torch/csrc/distributed/c10d/socket.cpp of torch 2",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="client-socket-timed-out-log",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="The client socket has timed out after ",
        pattern=r"\[c10d\] The client socket has timed out after (?P<time>\d{1,9} ?m?s) while "
        r"trying to connect to \((?P<host>[^,\s]{1,255}), (?P<port>\d{1,5})\)",
        meaning="Nobody answered at {host}:{port}, where rank 0 should listen.",
        fix=_MEET,
        example="[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying "
        "to connect to (node01, 29500).",
        origin="source: strings in the library of torch 2.13",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="client-socket-fails-repeatedly",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="[c10d] The client socket has failed to connect to ",
        pattern=r"\[c10d\] The client socket has failed to connect to \S{1,200} \(errno: (?:110|"
        r"113) - (?P<what>[A-Z][a-z ]{4,40})\)",
        meaning="Rank 0's store cannot be reached ({what}).",
        fix=_MEET,
        example="[W socket.cpp:601] [c10d] The client socket has failed to connect to "
        "[node01]:29500 (errno: 110 - Connection timed out).",
        origin="source: strings in the library of torch 2.13",
        least=2,
        weight=0.6,
    ),
    Signature(
        id="store-barrier-waits",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="Waiting in store based barrier to initialize process group",
        pattern=r"Waiting in store based barrier to initialize process group for rank: "
        r"(?P<waiting>\d{1,7})\b",
        meaning="Rank {waiting} waits for the other ranks to join the process group. The counts in "
        "the line that are more or fewer than the world size show whether ranks are missing, or "
        "whether ranks of an earlier attempt were counted too.",
        fix="Start exactly as many processes as the world size, each with its own rank. More "
        "workers than the world size: end the processes of earlier attempts and use another port.",
        example="INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to "
        "initialize process group for rank: 1, key: store_based_barrier_key:1 (world_size=2, "
        "worker_count=1, timeout=0:30:00)",
        origin="source: torch/distributed/distributed_c10d.py of torch 1.10",
        least=2,
        weight=0.6,
        overcome_by=("Completed store-based barrier",),
    ),
    Signature(
        id="store-stop-waiting",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="Stop_waiting response is expected",
        pattern=r"RuntimeError: Stop_waiting response is expected",
        meaning="The store of the rendezvous ended while this rank waited: the process that holds "
        "it failed.",
        fix="Look at rank 0 for the first error.",
        example="RuntimeError: Stop_waiting response is expected",
        origin="source: torch/csrc/distributed/c10d/TCPStore.cpp of torch 1.13",
        weight=0.6,
    ),
    Signature(
        id="rendezvous-heartbeat-failed",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="has failed to send a keep-alive heartbeat to the rendezvous",
        pattern=r"has failed to send a keep-alive heartbeat to the rendezvous .{0,80}?due to an "
        r"error",
        meaning="torchrun on this host lost the host that runs the rendezvous.",
        fix="Look at the first host: its torchrun or the network to it failed first.",
        example="The node 'node2_4711_0' has failed to send a keep-alive heartbeat to the "
        "rendezvous 'none' due to an error of type RendezvousConnectionError.",
        origin="source: torch/distributed/elastic/rendezvous of torch 2.13",
        weight=0.55,
    ),
)
