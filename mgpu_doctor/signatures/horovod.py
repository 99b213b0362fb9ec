"""What Horovod reports when ranks stall, disagree or die."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_STALL = "source: horovod/common/stall_inspector.cc of Horovod 0.28"
_SAME_ORDER = (
    "Every rank must reduce the same tensors: look for branches on `hvd.rank()`, unequal numbers "
    "of batches (use `hvd.join()`) and parameters that only some ranks use."
)
_CONTROLLER = "source: horovod/common/controller.cc of Horovod 0.28"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="horovod-stall",
        code="failed-horovod-stall",
        role=Role.CAUSE,
        needle="One or more tensors were submitted to be",
        pattern=r"One or more tensors were submitted to be reduced, gathered or broadcasted by "
        r"subset of ranks and are waiting for remainder of ranks for more than (?P<seconds>\d+) "
        r"seconds",
        meaning="Some ranks have waited {seconds} s for others that did not submit the same "
        "tensors. The lines after it name the ranks that are missing.",
        fix="Look at what the missing ranks do (`mgpu-doctor diagnose PID`). " + _SAME_ORDER,
        example="[2020-04-14 09:31:28.430523: W horovod/common/stall_inspector.cc:105] One or "
        "more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks "
        "and are waiting for remainder of ranks for more than 60 seconds. This may indicate that "
        "different ranks are trying to submit different tensors or that only subset of ranks is "
        "submitting tensors, which will cause deadlock. ",
        origin=_STALL,
        weight=0.95,
        more_heads=("One or more tensors were submitted to be reduced",),
    ),
    Signature(
        id="horovod-stall-ranks",
        code="failed-horovod-stall",
        role=Role.CAUSE,
        needle="[missing ranks:",
        pattern=r"(?<!\S)(?P<tensor>\S{1,1000}) \[missing ranks: ?(?P<ranks>\d[\d, ]*)\]",
        meaning="Tensor {tensor} waits for ranks {ranks}, which did not submit it.",
        fix="Look at what ranks {ranks} do. " + _SAME_ORDER,
        example="HorovodAllreduce_gradients_0 [missing ranks: 1, 3]",
        origin="source: horovod/common/operations.cc of Horovod 0.16",
    ),
    Signature(
        id="horovod-stall-torch",
        code="failed-horovod-stall",
        role=Role.CAUSE,
        needle="[allreduce.",
        pattern=r"^(?:(?P<rank>\d+)!?: )?\[(?P<tensor>allreduce\.[^\s,\]]{1,200})",
        meaning="The rank that this line begins with did not submit {tensor}.",
        fix="Look at what that rank did last. " + _SAME_ORDER,
        example="1: [allreduce.conv1.bias, allreduce.conv1.weight, allreduce.conv2.bias]",
        origin=_STALL,
        weight=0.8,
    ),
    Signature(
        id="horovod-stall-tensorflow",
        code="failed-horovod-stall",
        role=Role.CAUSE,
        needle="HorovodAllreduce",
        pattern=r"^(?:(?P<rank>\d+)!?: )?\["
        r"(?P<tensor>[^\s,\]]{0,160}HorovodAllreduce[^\s,\]]{0,160})",
        meaning="The rank that this line begins with did not submit {tensor}.",
        fix="Look at what that rank did last. " + _SAME_ORDER,
        example="1: [DistributedAdamOptimizer_Allreduce/HorovodAllreduce_grads_0_0]",
        origin=_STALL,
        weight=0.8,
    ),
    Signature(
        id="horovod-stall-shutdown",
        code="failed-horovod-stall",
        role=Role.CAUSE,
        needle='One or more rank (marked by "!")',
        pattern=r'One or more rank \(marked by "!"\) is stalled for longer than (?P<seconds>\d+) '
        r"seconds\. Will shutdown",
        meaning="A rank was missing for more than {seconds} s, so Horovod ended the job. The "
        "lines before it mark the rank with an exclamation mark.",
        fix="Look for what the marked rank did last. " + _SAME_ORDER,
        example='One or more rank (marked by "!") is stalled for longer than 120 seconds. Will '
        "shutdown.",
        origin=_STALL,
        weight=0.95,
    ),
    Signature(
        id="horovod-shut-down",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="Horovod has been shut down. This was",
        pattern=r"Horovod has been shut down\. This was caused by an exception on one of the ranks",
        meaning="Another rank failed or finished, so this one could not go on.",
        fix="Look for the first exception of another rank. If a rank just had fewer batches: "
        "`hvd.join()`.",
        example="tensorflow.python.framework.errors_impl.UnknownError:  Horovod has been shut "
        "down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
        "allgather or broadcast a tensor after one of the ranks finished execution.",
        origin="source: horovod/common/common.h of Horovod 0.28",
        weight=0.6,
    ),
    Signature(
        id="horovod-shapes",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle=" tensor shapes: One rank sent a tensor ",
        pattern=r"Mismatched (?P<operation>\w+) tensor shapes: One rank sent a tensor (?:of shape "
        r"|of rank |with dimension )(?P<left>.{1,80}), but another rank sent a tensor (?:of shape "
        r"|of rank |with dimension )(?P<right>.{1,80}?)\.(?:\s|$|')",
        meaning="Ranks submitted tensors of different shape to one {operation}: {left} and "
        "{right}.",
        fix="Build the same model on all ranks; pad or drop the last, smaller batch. Gather "
        "(`hvd.allgather`) may differ in the first dimension only.",
        example="Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [17, 17], "
        "but another rank sent a tensor of shape [17].",
        origin=_CONTROLLER,
        weight=0.95,
        more_heads=(
            "Mismatched allreduce tensor shapes",
            "Mismatched ALLREDUCE tensor shapes",
        ),
    ),
    Signature(
        id="horovod-operations",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="operations: One rank did an ",
        pattern=r"Mismatched (?:MPI )?operations: One rank did an (?P<left>\w+), but another rank "
        r"did an (?P<right>\w+)",
        meaning="One rank does {left}, another does {right} under one name.",
        fix=_SAME_ORDER,
        example="Mismatched operations: One rank did an ALLREDUCE, but another rank did an "
        "ALLGATHER.",
        origin=_CONTROLLER,
        weight=0.95,
    ),
    Signature(
        id="horovod-types",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="Mismatched data types: One rank had ",
        pattern=r"Mismatched data types: One rank had type (?P<left>\w+), but another rank had "
        r"type (?P<right>\w+)",
        meaning="Ranks submitted {left} and {right} to one operation.",
        fix="Use the same precision on every rank.",
        example="Mismatched data types: One rank had type float32, but another rank had type "
        "float64.",
        origin=_CONTROLLER,
        weight=0.95,
    ),
    Signature(
        id="horovod-devices",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle=" CPU/GPU device selection: One rank ",
        pattern=r"Mismatched (?P<operation>\w+) CPU/GPU device selection: One rank specified "
        r"device (?P<left>[CG]PU), but another rank specified device (?P<right>[CG]PU)",
        meaning="One rank's tensor for {operation} is on its {left}, another's on its {right}.",
        fix="Give every rank a GPU: check `CUDA_VISIBLE_DEVICES` and the framework's GPU build on "
        "every host, and pin each process to the GPU of its local rank.",
        example="Mismatched BROADCAST CPU/GPU device selection: One rank specified device CPU, but "
        "another rank specified device GPU.",
        origin=_CONTROLLER,
        weight=0.95,
    ),
    Signature(
        id="horovod-roots",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle=" root ranks: One rank specified ",
        pattern=r"Mismatched (?P<operation>\w+) root ranks: One rank specified root rank "
        r"(?P<left>\d+), but another rank specified root rank (?P<right>\d+)",
        meaning="Ranks named different roots ({left} and {right}) for one {operation}.",
        fix="Pass the same `root_rank` everywhere, usually 0.",
        example="Mismatched BROADCAST root ranks: One rank specified root rank 0, but another "
        "rank specified root rank 1.",
        origin=_CONTROLLER,
        weight=0.95,
    ),
    Signature(
        id="horovod-not-initialised",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Horovod has not been initialized",
        pattern=r"Horovod has not been initialized; use hvd\.init\(\)",
        meaning="Horovod was used before `hvd.init()`.",
        fix="Call `hvd.init()` first in the program, in every process.",
        example="ValueError: Horovod has not been initialized; use hvd.init().",
        origin="source: horovod/common/basics.py of Horovod 0.28",
    ),
    Signature(
        id="horovod-process-exited",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="Horovod detected that one or more processes",
        pattern=r"Horovod detected that one or more processes exited with non-zero status",
        meaning="A rank failed, so Horovod ended the others. The next lines name it.",
        fix="Look at the output of the rank in `Process name`.",
        example="RuntimeError: Horovod detected that one or more processes exited with non-zero "
        "status, thus causing the job to be terminated. The first process to do so was:",
        origin="source: horovod/runner/gloo_run.py of Horovod 0.28",
        weight=0.5,
    ),
)
