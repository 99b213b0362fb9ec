"""What torch says when the ranks do not find each other, or lose the store they meet at."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_MEET = (
    "Check that rank 0's process runs, that MASTER_ADDR names its host (not localhost on the other "
    "hosts), that MASTER_PORT is the same everywhere and that no firewall blocks it: "
    "`nc -zv $MASTER_ADDR $MASTER_PORT` from the other hosts."
)
_OTHER_PORT = (
    "Find the holder with `ss -ltnp` and end it, or choose another port: `torchrun --standalone`, "
    "`--master-port`, `MASTER_PORT`."
)
_STORE_LOST = (
    "Look at rank 0 (or the launcher that hosts the store): what it printed just before is the "
    "cause."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="port-in-use",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="The server socket has failed to listen on",
        pattern=r"Error: The server socket has failed to listen on any local network address"
        r"(?:\. port: (?P<port>\d+)\b)?.{0,400}?(?:EADDRINUSE|[Aa]ddress already in use)",
        meaning="The port that rank 0 must listen on is taken: an earlier run still holds it, or "
        "another job on this host uses the same one (or two processes of this job are rank 0).",
        fix=_OTHER_PORT,
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on any "
        "local network address. port: 39971, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
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
        id="clients-missing",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle=" waiting for clients. ",
        pattern=r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. "
        r"(?P<joined>\d+)/(?P<expected>\d+) clients joined",
        meaning="Only {joined} of {expected} ranks came to the store within {seconds} s.",
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
        pattern=r"Error: The client socket has failed to connect to any network address of "
        r"\((?P<host>[^,\s]{1,255}), (?P<port>\d+)\)",
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
        "written ({key}): the other never came so far.",
        fix="See which rank is missing, slow or dead; a longer limit: "
        "`init_process_group(..., timeout=timedelta(minutes=60))`.",
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
        "other never came so far.",
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
        meaning="Only {joined} of {expected} ranks came to the store.",
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
        id="environment-variable-missing",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="rendezvous: environment variable",
        pattern=r"Error initializing torch\.distributed using env:// rendezvous: environment "
        r"variable (?P<variable>\w+) expected, but not set",
        meaning="The script expects a launcher that sets {variable}, and it is not set.",
        fix="Start it with `torchrun --nproc-per-node=N SCRIPT`; under Slurm with `srun` export "
        "MASTER_ADDR, MASTER_PORT, RANK=$SLURM_PROCID, WORLD_SIZE=$SLURM_NTASKS and "
        "LOCAL_RANK=$SLURM_LOCALID.",
        example="ValueError: Error initializing torch.distributed using env:// rendezvous: "
        "environment variable RANK expected, but not set",
        origin="made: init_process_group in a plain `python` without the variables, torch 2.13",
        more_heads=("Error initializing torch.distributed using env",),
    ),
    Signature(
        id="rank-out-of-range",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="rank should be in the interval",
        pattern=r"Invalid rank (?P<given>-?\d+), rank should be in the interval \[0, "
        r"(?P<last>\d+)\]",
        meaning="Rank {given} was given where only 0 to {last} exist: WORLD_SIZE (or "
        "`num_replicas`) is too small.",
        fix="Take both from the group: `rank=dist.get_rank(), "
        "num_replicas=dist.get_world_size()`, or leave them out after `init_process_group`.",
        example="ValueError: Invalid rank 2, rank should be in the interval [0, 1]",
        origin="made: DistributedSampler for 2 replicas with rank 2, torch 2.13",
    ),
    Signature(
        id="group-rank-out-of-range",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="is out of range. Valid ranks are",
        pattern=r"Rank (?P<given>-?\d+) is out of range\. Valid ranks are 0 to (?P<last>-?\d+) "
        r"\(world_size=(?P<world>\d+)\)",
        meaning="The script makes a group with rank {given}, but the job has {world} ranks.",
        fix="Start as many processes as the script is written for, or derive the groups from "
        "`dist.get_world_size()`.",
        example="ValueError: Rank 5 is out of range. Valid ranks are 0 to 1 (world_size=2)",
        origin="made: new_group([0, 5]) in a job of two ranks, torch 2.13",
    ),
    Signature(
        id="mesh-larger-than-world",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="Mesh should not be bigger than default world size",
        pattern=r"Mesh should not be bigger than default world size (?P<world>\d+), but found "
        r"(?P<mesh>\d+) ranks",
        meaning="The device mesh is made for {mesh} ranks and the job has {world}.",
        fix="Start {mesh} processes, or make the product of the mesh's dimensions {world}.",
        example="RuntimeError: Mesh should not be bigger than default world size 2, but found 4 "
        "ranks!",
        origin="made: a 2x2 mesh in a job of two ranks, torch 2.13",
    ),
    Signature(
        id="elastic-rendezvous-timeout",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="RendezvousTimeoutError",
        pattern=r"rendezvous\.api\.RendezvousTimeoutError",
        meaning="torchrun waited for the other hosts in vain: fewer than `--nnodes` came.",
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
        meaning="torchrun on this host came when the job was over or had failed on another host.",
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
        r"cannot be "
        r"retrieved \(gai error",
        meaning="The name {host} of the rendezvous is unknown on this host.",
        fix="Correct MASTER_ADDR or `--rdzv-endpoint`; `getent hosts {host}` must work on every "
        "host. Under Kubernetes the name appears once the pod of rank 0 runs.",
        example="The IPv6 network addresses of (node-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
        origin="source: strings in the library of torch 2.13",
        least=3,
        weight=0.6,
    ),
)
