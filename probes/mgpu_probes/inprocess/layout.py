"""The layout of a black box: every offset, size and code that writer and readers share.

`docs/black-box.md` explains the format in prose. Standard library alone: this module runs inside
training ranks of any Python >=3.10. All integers are in the byte order of the machine that wrote
them; `BYTE_ORDER_MARK` tells a reader which that was.
"""

from __future__ import annotations

import struct

MAGIC = b"MGPUBBX\x00"
VERSION_MAJOR = 1
"""A reader refuses a box whose major version is not its own."""
VERSION_MINOR = 2
"""Raised when fields are added in reserved space; readers ignore what they do not know."""
BYTE_ORDER_MARK = 0x01020304
BOX_SUFFIX = ".box"
TRAINS = "mgpu-trains"
"""What the kernel shall call the thread that trains, where that is not the main one."""

PHASES = (
    "input",
    "transfer",
    "forward",
    "backward",
    "wait",
    "communication",
    "optimizer",
    "checkpoint",
    "evaluation",
    "other",
)
"""The phases of a step, in the order in which a step record stores them.

`wait` holds the seconds in which the rank stood in a collective or a receive: for other ranks and
for the data to move. Only a comparison of ranks can tell the two apart (`analysis`), so a rank
itself writes NaN (not measured) as `communication`.
"""
(
    INPUT,
    TRANSFER,
    FORWARD,
    BACKWARD,
    WAIT,
    COMMUNICATION,
    OPTIMIZER,
    CHECKPOINT,
    EVALUATION,
    OTHER,
) = range(len(PHASES))

# --- header (4096 bytes) -------------------------------------------------------------------------
HEADER_SIZE = 4096
IDENTITY = struct.Struct("=8sHHI" + "I" * 13 + "4x" + "IIQqq16s" + "iiiiii" + "64s")
"""magic, major, minor, byte order mark;
header size, birth offset, birth slot size, strings offset, strings size, steps offset,
step capacity, events offset, event capacity, history offset, history capacity, words offset,
words size;
pid, parent pid, start time of pid in clock ticks since boot (/proc/PID/stat field 22), wall clock
and monotonic clock read together (ns), boot id;
rank, local rank, world size, restart attempt, pipeline stage, number of stages (-1: unknown);
host name (UTF-8, NUL padded)."""

# Single words, each an aligned native u64 on a cache line of its own group.
GENERATION_FIRST = 512  # written before the identity block changes
GENERATION_LAST = 520  # written after: a reader trusts the block only when both are equal and > 0
STEP_CURSOR = 1024  # sequence number of the newest step record; 0: none
EVENT_CURSOR = 1088
STRINGS_USED = 1152  # bytes of the strings area in use
BIRTH_SLOT = 1216  # (slot << 32) | length: the valid one of two birth slots
HISTORY_ACTIVE = 1280  # which of the two history areas is valid: 0 or 1
HISTORY_CURSOR = (1288, 1296)  # newest sequence number in each area
HISTORY_WINDOW = (1304, 1312)  # ns that one history record covers in each area
NOW_PHASE = 1344  # phase | (step << 8)
NOW_SINCE = 1352  # monotonic ns at which it was entered
NOW_SITE = 1360  # offset of the collective's call site in the strings area + 1; 0: none
NOW_SEQUENCE = 1368  # collective sequence number of the default group; 0: unknown
STATE = 1408
EXIT_CODE = 1416  # exit code + 1 as far as the process itself knew it; 0: unknown
ENDED = 1424  # monotonic ns
PROBE_COST = 1472  # ns the probe has spent in this process, by its own count
WORDS_USED = 1536  # bytes of the last words (JSON) in use

JOINING, RUNNING, ENDED_CLEAN, FAILED, OFF = range(5)
"""Values of STATE. JOINING: asked to join its process group and has not yet. OFF: the probe
switched itself off; the last words say why."""
STATES = ("joining", "running", "ended", "exception", "off")

# --- areas ---------------------------------------------------------------------------------------
BIRTH_SLOT_SIZE = 16 * 1024  # twice: JSON, see docs/black-box.md
STRINGS_SIZE = 64 * 1024  # u16 length + UTF-8, one after the other
WORDS_SIZE = 16 * 1024  # JSON: why the process ended, with a traceback
STEP_CAPACITY = 8192
EVENT_CAPACITY = 1024
HISTORY_CAPACITY = 1024  # records in each of the two areas
FIRST_HISTORY_WINDOW_NS = 10_000_000_000

STEP = struct.Struct("=QqqII10fIIffIHHfQhH4xQI")
"""sequence (from 1), end (monotonic ns), wall time (ns), step (from 0), flags, seconds in each of
PHASES (NaN: not measured), samples, tokens (0: unknown), loss (NaN: unknown), seconds in Python's
garbage collector, sequence number of the default group at the step's end (0: unknown), collectives
called, micro-batches (backward passes), CPU seconds of the main thread (NaN: unknown), allocated
device bytes at the step's end (0: unknown), pipeline stage (-1), parallel group (index into the
birth's `groups`; 0: the default), reserved, resident bytes of the process at the step's end (0: not
read), CRC-32 of all before it.

History records have the same shape: sums over the steps that ended in the window; `step` is the
last of them, `micro-batches` of a history record is the number of steps, `loss` is the last."""
STEP_SIZE = STEP.size
STEP_CRC_AT = STEP_SIZE - 4

WARM_UP = 1  # step flag: compilation, first batch or learning what a step is
SKIPPED = 2  # step flag: the optimizer was skipped (gradient scaler)
NO_OPTIMIZER = 4  # step flag: the step was found without an optimizer
BATCH_READY = 8  # step flag: a loader's worker had a batch ready when the step asked for one

EVENT = struct.Struct("=QqHHIQd212sI")
"""sequence, start (monotonic ns), kind, text length, step, duration (ns), value, UTF-8 text,
CRC-32 of all before it."""
EVENT_SIZE = EVENT.size
EVENT_CRC_AT = EVENT_SIZE - 4
EVENT_TEXT_SIZE = 212

EVENTS = (
    "note",
    "joined",
    "gc",
    "checkpoint",
    "evaluation",
    "exception",
    "memory",
    "recompile",
    "left",
)
NOTE, JOINED, GC, SAVED, EVALUATED, RAISED, MEMORY, RECOMPILED, LEFT = range(len(EVENTS))


def areas() -> dict[str, int]:
    """Offsets of the areas and the size of a whole box, in bytes."""
    at: dict[str, int] = {}
    offset = HEADER_SIZE
    for name, size in (
        ("birth", 2 * BIRTH_SLOT_SIZE),
        ("strings", STRINGS_SIZE),
        ("words", WORDS_SIZE),
        ("steps", STEP_CAPACITY * STEP_SIZE),
        ("events", EVENT_CAPACITY * EVENT_SIZE),
        ("history", 2 * HISTORY_CAPACITY * STEP_SIZE),
    ):
        at[name] = offset
        offset += size
    at["end"] = offset
    return at
