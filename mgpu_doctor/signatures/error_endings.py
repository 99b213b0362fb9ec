"""What is known of a failure if a text has neither a known message nor a telling word: only that a
process ended, or that the text is cut.

Like topics, these are `Signature`s whose pattern is not searched (see `case/worded_errors.py`).
"""

from __future__ import annotations

import re
from dataclasses import replace

from mgpu_doctor.signatures.error_topics import ENDING
from mgpu_doctor.signatures.signature import Role, Signature


def _ending(name: str, code: str, meaning: str, example: str) -> Signature:
    return Signature(
        id=name,
        code=code,
        role=Role.CAUSE,
        needle="",
        pattern="",
        meaning=meaning,
        fix="Look for the first error above this line or in the logs of the other ranks; run it "
        "again with all output kept (`torchrun --tee 3 --log-dir logs`).",
        example=example,
        origin="made: a text that was cut",
        weight=ENDING,
        needle_tells=False,
        wrapper=True,
    )


ABORTED = _ending(
    "words-fatal-line",
    "failed-signal",
    "A failed check in native code ended the process.",
    "F0102 03:04:05.678901 4711 pool.cc:7] Check failed: a == b",
)
UNFINISHED = _ending(
    "words-traceback-cut",
    "failed-exception",
    "An exception was raised, but the text ends before it says which one.",
    '  File "train.py", line 7, in main',
)
STOPPED = _ending(
    "words-launcher-report",
    "failed-exception",
    "The launcher reports that a process failed, but the text does not say why.",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
)
LOST_PEER = _ending(
    "words-connection-lost",
    "failed-exception",
    "A process that had already trained lost its connection to another one.",
    "rpc client: connection to node 3 failed",
)
DIVERGED = replace(
    _ending(
        "words-last-loss-nan",
        "loss-nan",
        "The last loss that was printed is not a number.",
        "step 700 loss=nan",
    ),
    fix="See at which step the loss stops being a number. Lower the learning rate, clip gradients, "
    "and check the batch; `torch.autograd.set_detect_anomaly(True)` finds the operation.",
    severity="warning",
)
WAITING = replace(
    _ending(
        "words-still-waiting",
        "hang-rendezvous",
        "The text ends while ranks wait for others to join the process group.",
        "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/4",
    ),
    fix="Find the rank that never joined: it did not start, failed before, or cannot reach the "
    "master's address and port. `mgpu-doctor diagnose PID` shows where each rank waits.",
    needle="Initializing distributed: GLOBAL_RANK",
    role=Role.SYMPTOM,
)
UNMET = replace(
    WAITING,
    id="words-waited-in-vain",
    code="failed-rendezvous",
    meaning="A rank failed while it waited for others to join the process group.",
)
NCCL_TRAIL = _ending(
    "words-nccl-trail",
    "failed-nccl-init",
    "A call of NCCL failed: the text ends with the trail that its error left in the callers.",
    "node01:4711:4790 [0] NCCL INFO transport/net.cc:515 -> 2",
)
SILENT = _ending(
    "words-ended-silently",
    "failed-killed",
    "The launcher reports that a process ended that had printed no exception. Something most "
    "likely killed it: as a rule the system, for memory.",
    "[ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py']",
)


def _cut_in(library: str, code: str, files: str) -> tuple[Signature, re.Pattern[str]]:
    ending = replace(
        UNFINISHED,
        id=f"words-traceback-cut-in-{code.removeprefix('failed-')}",
        code=code,
        meaning=f"An exception was raised in {library}, but the text ends before it says which.",
    )
    return ending, re.compile(rf"(?:^|[/\\])(?:{files})\.py$")


CUT_IN = (
    _cut_in(
        "the set-up of DeepSpeed",
        "failed-deepspeed",
        r"deepspeed/(?:runtime/(?:zero/)?config\w{0,20}|ops/op_builder/\w{1,40}|__init__)",
    ),
    _cut_in("FSDP", "failed-fsdp", r"torch/distributed/(?:_composable/)?fsdp/\w{1,60}"),
    _cut_in(
        "the rendezvous",
        "failed-rendezvous",
        r"torch/distributed/(?:rendezvous|elastic/rendezvous/\w{1,60})",
    ),
    _cut_in(
        "reading or writing a checkpoint",
        "failed-checkpoint",
        r"torch/(?:serialization|distributed/checkpoint/\w{1,60})",
    ),
)
"""Endings of a traceback that was cut, by the files of its last calls: what they do is known."""
ENDINGS: tuple[Signature, ...] = (
    *(ABORTED, UNFINISHED, STOPPED, LOST_PEER, DIVERGED, WAITING, UNMET, NCCL_TRAIL, SILENT),
    *(ending for ending, _ in CUT_IN),
)
