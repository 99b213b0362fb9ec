"""gloo and the checks of TORCH_DISTRIBUTED_DEBUG: collectives on CPUs that failed or differ."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_FIRST = (
    "Look for the first error of another rank: this one only lost its connection. `mgpu-doctor "
    "diagnose` of all ranks' logs together finds it."
)
_SAME_CALLS = (
    "Every rank must call the same collectives in the same order with the same shapes: look for a "
    "branch on the rank or on data, and for loops of unequal length. Flight-recorder dumps of all "
    "ranks, given to `mgpu-doctor diagnose`, name the first call that differs."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="gloo-closed-by-peer",
        code="failed-gloo",
        role=Role.SYMPTOM,
        needle="Connection closed by peer [",
        pattern=r"gloo/transport/tcp/\w+\.cc:\d+\] Connection closed by peer \["
        r"(?P<host>[^\]]{1,64})\](?::(?P<port>\d+))?",
        meaning="Another rank ended while this one waited for it: it crashed, raised or finished "
        "early.",
        fix=_FIRST,
        example="RuntimeError: "
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed "
        "by peer [127.0.0.1]:42709. This is typically caused by a remote worker crashing. Check "
        "the logs of the remote worker before reporting an error.",
        origin="made: a rank killed before an all_reduce, torch 2.13",
        weight=0.5,
        more_heads=("This is typically caused by a remote worker crashing",),
    ),
    Signature(
        id="gloo-reset-by-peer",
        code="failed-gloo",
        role=Role.SYMPTOM,
        needle="gloo/transport/tcp/",
        pattern=r"gloo/transport/tcp/\w+\.cc:\d+\] (?:Read|Write|writev|Read/Write) ?(?:error )?"
        r"(?:\[(?P<host>[^\]]{1,64})\](?::(?P<port>\d+)\b)?)?.{0,40}?(?:Connection reset by peer|"
        r"Broken pipe|Connection timed out|No route to host)",
        meaning="The connection to another rank broke: it crashed, or the network between the "
        "hosts failed.",
        fix=_FIRST,
        example="RuntimeError: "
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
        "[127.0.0.1]:14471: Connection reset by peer. This is typically caused by a remote worker "
        "hanging or bugs in the application. Check the logs of the remote worker before reporting "
        "an error.",
        origin="made: a rank that ends in the middle of an all_reduce, torch 2.13",
        weight=0.5,
        needle_tells=False,
        more_heads=("This is typically caused by a remote worker hanging",),
    ),
    Signature(
        id="gloo-timeout",
        code="failed-gloo",
        role=Role.SYMPTOM,
        needle="Timed out waiting ",
        pattern=r"gloo/transport/\w+/\w+\.cc:\d+\] Timed out waiting (?P<milliseconds>\d+)ms for "
        r"(?P<operation>\w+) operation to complete",
        meaning="This rank waited {milliseconds} ms for another one in a collective: the other "
        "arrived too late or never.",
        fix="Look at what the other ranks did then: `mgpu-doctor diagnose PID` while it hangs "
        "shows it. A longer limit: `init_process_group(..., timeout=timedelta(minutes=60))`.",
        example="RuntimeError: "
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed "
        "out waiting 2000ms for recv operation to complete",
        origin="made: an all_reduce that one rank never joins, timeout of 2 s, torch 2.13",
        weight=0.6,
        needle_tells=False,
        more_heads=(
            "gloo/transport/tcp/unbound_buffer.cc",
            "ms for recv operation to complete",
            "ms for send operation to complete",
        ),
    ),
    Signature(
        id="gloo-timeout-elsewhere",
        code="failed-gloo",
        role=Role.SYMPTOM,
        needle="Application timeout caused pair closure",
        pattern=r"Application timeout caused pair closure",
        meaning="This rank, or the one that it talked to, waited for the other in a collective up "
        "to the time limit, and the connection was closed.",
        fix="Look at what the other ranks did then: `mgpu-doctor diagnose PID` while it hangs "
        "shows it. A longer limit: `init_process_group(..., timeout=timedelta(minutes=60))`.",
        example="RuntimeError: Application timeout caused pair closure",
        origin="made: an all_reduce on one rank, a broadcast on the other, torch 2.13",
        weight=0.5,
    ),
    Signature(
        id="gloo-size-mismatch",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="op.preamble.length <= op.nbytes",
        pattern=r"enforce fail at [^\]]{1,200}/gloo/transport/tcp/pair\.cc:\d{1,9}\] "
        r"op\.preamble\.length <= op\.nbytes\. (?P<sent>\d{1,20}) vs (?P<expected>\d+)",
        meaning="The ranks called different collectives, or the same one with other shapes or "
        "types: {sent} bytes arrived where {expected} were expected.",
        fix=_SAME_CALLS,
        example="  what():  [enforce fail at "
        "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length "
        "<= op.nbytes. 1004 vs 4. Received data size doesn't match expected size. Is there a "
        "distributed collective mismatch in your code?",
        origin="made: an all_reduce of other lengths on two ranks, torch 2.13",
        needle_tells=False,
        more_heads=("Received data size doesn't match expected size",),
        mutual=True,
    ),
    Signature(
        id="collectives-differ",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="Detected mismatch between collectives on ranks",
        pattern=r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running "
        r"(?:inconsistent )?collective: CollectiveFingerPrint\((?:SequenceNumber="
        r"(?P<sequence>\d+))?[, ]{0,4}OpType=(?P<operation>\w{1,40})\b.{0,1000}?, but Rank "
        r"(?P<other>\d{1,9}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
        r"(?:SequenceNumber=\d{1,20})?[, ]{0,4}OpType=(?P<other_operation>\w+)",
        meaning="Rank {rank} called {operation} while rank {other} called {other_operation}, or "
        "the same with another shape or type.",
        fix="Every rank must call the same collectives in the same order with the same shapes: "
        "look for a branch on the rank or on data, and for loops of unequal length.",
        example="RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        "collective: CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[4], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, "
        "layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), "
        "memory_format=(nullopt))), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=0, OpType=BROADCAST, TensorShape=[4], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, "
        "layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), "
        "memory_format=(nullopt))).Collectives differ in the following aspects: ",
        origin="made: all_reduce against broadcast, TORCH_DISTRIBUTED_DEBUG=DETAIL, torch 2.13",
        weight=0.95,
        more_heads=("Detected mismatch between collectives",),
        mutual=True,
    ),
    Signature(
        id="monitored-barrier-missing",
        code="hang-rank-behind",
        role=Role.CAUSE,
        needle=" failed to pass monitoredBarrier in ",
        pattern=r": Ranks? (?P<rank>\d+) failed to pass monitoredBarrier in (?P<milliseconds>\d+) "
        r"ms",
        meaning="Rank {rank} did not reach the barrier (or the collective that is checked) within "
        "{milliseconds} ms.",
        fix="Look at what rank {rank} did then: its own log, or `mgpu-doctor diagnose PID` while "
        "it hangs.",
        example="RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 2000 ms",
        origin="made: an all_reduce that rank 1 never joins, TORCH_DISTRIBUTED_DEBUG=DETAIL, "
        "torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="monitored-barrier-many-missing",
        code="hang-rank-behind",
        role=Role.SYMPTOM,
        needle=" failed to pass monitoredBarrier in ",
        pattern=r": Ranks (?P<ranks>\d+(?:, ?\d+)+) failed to pass monitoredBarrier in "
        r"(?P<milliseconds>\d+) ms",
        meaning="Ranks {ranks} did not reach the barrier (or the collective that is checked) "
        "within {milliseconds} ms.",
        fix="Look at what these ranks did then: their logs, or `mgpu-doctor diagnose PID` while "
        "they hang.",
        example="RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp of torch 2.13",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="monitored-barrier-victim",
        code="failed-gloo",
        role=Role.SYMPTOM,
        needle="successfully reached monitoredBarrier, but received errors",
        pattern=r"Rank (?P<rank>\d+) successfully reached monitoredBarrier, but received errors "
        r"while waiting for send/recv from rank 0",
        meaning="Rank {rank} reached the barrier and lost rank 0, which knows which ranks did not.",
        fix="Read rank 0's log, which names the rank that did not reach it.",
        example="RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors "
        "while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
        origin="made: monitored_barrier on one rank only, torch 2.13",
        weight=0.5,
    ),
    Signature(
        id="gloo-gather-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="invalid tensor size at index",
        pattern=r"ProcessGroup\w{1,40}::(?P<operation>\w+): invalid tensor size at index "
        r"(?P<index>\d+) \(expected \((?P<expected>[\d, ]*)\), got \((?P<got>[\d, ]*)\)\)",
        meaning="The output list of {operation} holds a tensor of ({got}) where ({expected}) is "
        "expected.",
        fix="Allocate the outputs like the input (`torch.empty_like(x)`), and send the same shape "
        "from every rank; pad where they differ.",
        example="RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 0 "
        "(expected (4), got (3))",
        origin="made: all_gather of 4 elements into tensors of 3, torch 2.13",
    ),
    Signature(
        id="gloo-gather-count",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="invalid output tensor list at index",
        pattern=r"ProcessGroup\w{1,40}::(?P<operation>\w+): invalid output tensor list at index "
        r"\d+ \(expected length (?P<expected>\d+), got (?P<got>\d+)\)",
        meaning="{operation} got a list of {got} output tensors for a group of {expected} ranks.",
        fix="Make the list as long as the group: `[torch.empty_like(x) for _ in "
        "range(dist.get_world_size(group))]`.",
        example="RuntimeError: ProcessGroupGloo::allgather: invalid output tensor list at index 0 "
        "(expected length 2, got 1)",
        origin="made: all_gather into a list of one tensor on two ranks, torch 2.13",
    ),
    Signature(
        id="gloo-interface",
        code="failed-gloo",
        role=Role.CAUSE,
        needle="Unable to find address for:",
        pattern=r"gloo/transport/tcp/device\.cc:\d+\] ifa != nullptr\. Unable to find address "
        r"for: (?P<interface>\S{1,64})",
        meaning="Gloo is configured to use the network interface {interface}, but this host has no "
        "such interface with an address.",
        fix="Set `GLOO_SOCKET_IFNAME` to an interface that reaches the other hosts (`ip -br addr` "
        "lists them), or unset it.",
        example="RuntimeError: [enforce fail at "
        "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        "Unable to find address for: nope0",
        origin="made: GLOO_SOCKET_IFNAME=nope0, torch 2.13",
    ),
    Signature(
        id="gloo-full-mesh",
        code="failed-gloo",
        role=Role.SYMPTOM,
        needle="Gloo connectFullMesh failed with",
        pattern=r"Gloo connectFullMesh failed with (?P<why>.{1,300})",
        meaning="The ranks met at the store, but could not connect to each other: another rank "
        "ended at the start, or hosts cannot reach each other's addresses.",
        fix="Look for a rank that ended first. Otherwise set `GLOO_SOCKET_IFNAME` to the interface "
        "that the hosts share, and open all ports between them; a host name that resolves to "
        "127.0.0.1 in /etc/hosts also does this.",
        example="RuntimeError: Gloo connectFullMesh failed with "
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp of torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="gloo-connect-refused",
        code="failed-gloo",
        role=Role.CAUSE,
        needle=": Connection refused",
        pattern=r"gloo/transport/tcp/pair\.cc:\d{1,6}\] connect \[(?P<address>[\w.:%-]{1,60})\]:?"
        r"(?P<port>\d{0,5}): Connection refused",
        meaning="gloo could not connect to {address}: the other rank is gone, or its host "
        "announced an address that others cannot reach.",
        fix="Set GLOO_SOCKET_IFNAME to the network interface between the hosts on every rank, and "
        "look in /etc/hosts for a line that maps the host's name to 127.0.1.1. If a rank failed "
        "before, that is the cause.",
        example="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect "
        "[10.0.0.4]:21734: Connection refused",
        origin="recalled: gloo/transport/tcp/pair.cc as of torch 1.7",
        weight=0.8,
    ),
    Signature(
        id="gloo-no-device",
        code="failed-gloo",
        role=Role.CAUSE,
        needle="unsupported gloo device",
        pattern=r"\bmakeDeviceFor\w{1,20}\(\): unsupported gloo device",
        meaning="gloo found no network interface that it can use for this host's name.",
        fix="Set GLOO_SOCKET_IFNAME to the interface that reaches the other hosts; the host's "
        "name must resolve to its address.",
        example="RuntimeError: makeDeviceForHostname(): unsupported gloo device",
        origin="source: strings in the library of torch 2.13",
    ),
)
