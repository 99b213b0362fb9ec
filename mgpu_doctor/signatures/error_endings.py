"""What is known of a failure if a text has neither a known message nor a telling word: only that a
process ended, or that the text is cut.

Like topics, these are `Signature`s whose pattern is not searched (see `case/worded_errors.py`).
"""

from __future__ import annotations

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
ENDINGS: tuple[Signature, ...] = (ABORTED, UNFINISHED, STOPPED, LOST_PEER, DIVERGED, WAITING, UNMET)
