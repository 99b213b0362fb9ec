"""The layout of a black box: every offset, size and code that writer and readers share.

`docs/black-box.md` explains the format in prose. This module also runs inside training ranks:
standard library only, Python >= 3.10. All integers are in the byte order of the machine that wrote
them, which `BYTE_ORDER_MARK` shows.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"MGPUBBX\x00"
VERSION_MAJOR = 1
"""A reader rejects a box of another major version."""
VERSION_MINOR = 5
"""Incremented when fields are added in reserved space; readers ignore unknown fields."""
BYTE_ORDER_MARK = 0x01020304
BOX_SUFFIX = ".box"
TRAINS = "mgpu-trains"
"""The kernel's name of the training thread if that is not the main thread (`ray_hooks`)."""

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

`wait` holds the seconds that the rank spent in a collective or a receive, waiting for other ranks
and for the transfer. Only a comparison of ranks can separate the two (`analysis`), so a rank itself
writes NaN (not measured) as `communication`.
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
DEVICE_AREA = 1600  # offset of the ring of device times; 0: none
DEVICE_CURSOR = 1608  # sequence number of the newest record of device times; 0: none
DEVICE_RECORDS = 1616  # records that this ring holds
DEVICE_LOOK = 1664  # one of DEVICE_LOOKS: what is known of how far the device got
DEVICE_LOOK_BEGUN = 1672  # monotonic ns of that look, written before the words that follow
DEVICE_PHASE = 1680  # phase | (step << 8): what the device does since the newest mark it passed
DEVICE_TURN = 1688  # key of the turn: equal on all ranks in the same turn
DEVICE_MARKS = 1696  # marks of the turn that it passed | (1 << 32 if the next one is queued)
DEVICE_SINCE = 1704  # monotonic ns of the first look that showed the same
DEVICE_LOOK_ENDED = 1712  # as DEVICE_LOOK_BEGUN, written last: a reader trusts only equal ones

JOINING, RUNNING, ENDED_CLEAN, FAILED, OFF = range(5)
"""Values of STATE. JOINING: waits to join its process group. OFF: the probe switched itself off;
the last words give the reason."""
STATES = ("joining", "running", "ended", "exception", "off")
NOT_WATCHED, HOST_MOVES, NOT_TIMED, POSITION_KNOWN = range(4)
"""Values of DEVICE_LOOK. NOT_WATCHED: no device times this process. HOST_MOVES: the training sets
marks, so the device is not polled. NOT_TIMED: the device is in a turn that it does not time."""

# --- areas ---------------------------------------------------------------------------------------
BIRTH_SLOT_SIZE = 16 * 1024  # twice: JSON, see docs/black-box.md
STRINGS_SIZE = 64 * 1024  # u16 length + UTF-8, one after the other
WORDS_SIZE = 16 * 1024  # JSON: why the process ended, with a traceback
STEP_CAPACITY = 8192
EVENT_CAPACITY = 1024
HISTORY_CAPACITY = 1024  # records in each of the two areas
FIRST_HISTORY_WINDOW_NS = 10_000_000_000
DEVICE_CAPACITY = 2048


class Field(NamedTuple):
    """One field of a record."""

    name: str
    """Empty: the CRC of all before it, or reserved."""
    code: str
    """As in `struct`, with the byte order of the machine."""
    meaning: str
    """Its description in docs/black-box.md, with the value that means "unknown"."""
    least: int | None = None
    """The smallest integer that is written, if the type allows smaller ones."""


def format_of(fields: tuple[Field, ...]) -> str:
    """The `struct` format of records with these fields."""
    return "=" + "".join(field.code for field in fields)


def offsets_of(fields: tuple[Field, ...]) -> tuple[int, ...]:
    """The offset of each field, in bytes."""
    return tuple(struct.calcsize(format_of(fields[:count])) for count in range(len(fields)))


STEP_FIELDS = (
    Field("seq", "Q", "sequence number, from 1; record *n* is in slot (n − 1) mod capacity"),
    Field("end_ns", "q", "end of the step"),
    Field("wall_ns", "q", "its wall time, ns", 0),
    Field("step", "I", "step, from 0"),
    Field(
        "flags",
        "I",
        "flags: 1 warm-up (compilation, first batch), 2 optimizer skipped, 4 found without an "
        "optimizer, 8 a loader's worker had a batch ready when the step asked for one (since 1.1), "
        "16 untimed: only its end, wall time, step and sequence number are known (since 1.5), "
        "32 timed because of an earlier step, so not part of the sample (since 1.5)",
    ),
    Field(
        "phases",
        f"{len(PHASES)}f",
        f"seconds in each phase: {', '.join(PHASES)}; NaN: not measured",
    ),
    Field("samples", "I", "samples; 0: unknown"),
    Field("tokens", "I", "tokens; 0: unknown"),
    Field("loss", "f", "loss; NaN: unknown; infinite: it was no number (NaN or infinite)"),
    Field("gc_s", "f", "seconds in the language's garbage collector"),
    Field(
        "group_seq",
        "I",
        "sequence number of the default group at the step's end; 0: unknown",
    ),
    Field("collectives", "H", "collectives called"),
    Field("micro_batches", "H", "micro-batches (backward passes)"),
    Field("cpu_s", "f", "CPU seconds of the main thread; NaN: unknown"),
    Field("device_bytes", "Q", "allocated device bytes at the step's end; 0: unknown"),
    Field("stage", "h", "pipeline stage; -1: none or unknown", -1),
    Field(
        "group",
        "H",
        "parallel group: index into the process metadata's `groups`; 0: the default group",
    ),
    Field("", "4x", "reserved; in a history record the number of steps, u32"),
    Field(
        "resident_bytes",
        "Q",
        "resident bytes of the process (`/proc/self/statm`), read at the step's end; 0: not read "
        "then (since 1.2)",
    ),
    Field("", "I", "CRC of all before it"),
)
"""The fields of a step record. The struct, the reader's dtype (`mgpu_doctor.recording.records`) and
the table of docs/black-box.md are generated from them. Add a field only in reserved space.

History records have the same fields: sums over the steps that ended in the window. `step` and
`loss` are those of the last step; `micro_batches` is the number of steps."""

STEP = struct.Struct(format_of(STEP_FIELDS))
STEP_OFFSETS = offsets_of(STEP_FIELDS)
STEP_SIZE = STEP.size
STEP_CRC_AT = STEP_SIZE - 4

WARM_UP = 1  # step flag: compilation, first batch or learning what a step is
SKIPPED = 2  # step flag: the optimizer was skipped (gradient scaler)
NO_OPTIMIZER = 4  # step flag: the step was found without an optimizer
BATCH_READY = 8  # step flag: a loader's worker had a batch ready when the step asked for one
UNTIMED = 16  # step flag: only end, wall time, step and sequence number are known (`step_sampling`)
OUT_OF_TURN = 32  # step flag: timed because of an earlier step, so not part of the sample

DEVICE_FIELDS = (
    Field("seq", "Q", "sequence number, from 1; record *n* is in slot (n − 1) mod capacity"),
    Field("step_seq", "Q", "sequence number of the step's record"),
    Field("wall_ns", "q", "the step's wall time on the device's clock, ns", 0),
    Field(
        "phases",
        f"{len(PHASES)}f",
        "seconds in each phase on the device's clock, in the order of a step record; NaN: not "
        "measured",
    ),
    Field(
        "least_lead",
        "f",
        "seconds that the host was ahead of the device when the last backward pass began, at "
        "least; NaN: unknown",
    ),
    Field("most_lead", "f", "the same, at most; NaN: unknown"),
    Field("loss", "f", "of the last backward pass; infinite: not finite; NaN: unknown"),
    Field("flags", "I", "2: skipped, as in a step record, but on the device"),
    Field("", "4x", "reserved"),
    Field("", "I", "CRC of all before it"),
)
"""The fields of a record of device times; used like `STEP_FIELDS`."""

DEVICE = struct.Struct(format_of(DEVICE_FIELDS))
DEVICE_SIZE = DEVICE.size
DEVICE_CRC_AT = DEVICE_SIZE - 4

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
    offsets: dict[str, int] = {}
    offset = HEADER_SIZE
    for name, size in (
        ("birth", 2 * BIRTH_SLOT_SIZE),
        ("strings", STRINGS_SIZE),
        ("words", WORDS_SIZE),
        ("steps", STEP_CAPACITY * STEP_SIZE),
        ("events", EVENT_CAPACITY * EVENT_SIZE),
        ("history", 2 * HISTORY_CAPACITY * STEP_SIZE),
        ("device", DEVICE_CAPACITY * DEVICE_SIZE),
    ):
        offsets[name] = offset
        offset += size
    offsets["end"] = offset
    return offsets
