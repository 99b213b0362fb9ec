"""A hand-made job with many events: a restart, checkpoints, compilations, XIDs, a lost GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_doctor.case.device_samples import Device, DeviceSample, XidEvent
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, Error, Event, Job, Outcome, Rank, State, Subject
from mgpu_doctor.case.placeholders import blank_rank
from mgpu_doctor.case.process_metadata import ProcessMetadata
from mgpu_doctor.findings import Culprit, Diagnosis, Finding, Followed, Severity
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.recording.box import STEP_DTYPE

START = 1_790_000_000.0
AGAIN = START + 300.0
"""When torchrun restarted the ranks."""
AT = START + 1500.0
STEP = 0.5
"""Seconds."""
GIB = 1 << 30


def rank(number: int | None, **changes: Any) -> Rank:
    """A rank that joined after the restart and has trained since."""
    facts: dict[str, Any] = {
        "rank": number,
        "world_size": 4,
        "host": "node-a",
        "attempt": 1,
        "state": State.RUNNING,
        "pid": 4000 + (number or 0),
        "started": AGAIN + 0.1 * (number or 0),
        "device": f"cuda:{number}",
        "metadata": ProcessMetadata(device_uuid=f"GPU-{number}"),
    }
    return blank_rank(**{**facts, **changes})


def event(kind: str, step: int, seconds: float, text: str = "", value: float = 0.0) -> Event:
    """An event at the moment of its step after the restart."""
    return Event(kind, AGAIN + step * STEP, step, seconds, value, text)


def saves(many: int = 12, every: int = 100, slow: int | None = 5) -> tuple[Event, ...]:
    return tuple(
        event("checkpoint", every * (turn + 1), 12.0 if turn == slow else 1.2 + 0.01 * turn)
        for turn in range(many)
    )


def steps(first: int, count: int) -> np.ndarray[Any, np.dtype[np.void]]:
    records = np.zeros(count, dtype=STEP_DTYPE)
    records["step"] = np.arange(first, first + count)
    records["end_ns"] = (AGAIN + STEP * records["step"]) * 1e9
    return records


def devices(at: float, lost: bool = False, *xids: XidEvent) -> DeviceSample:
    """A sample of two GPUs; GPU 1 is lost if `lost`."""
    well: dict[str, Any] = {
        "utilization": 0.9,
        "memory_used": GIB,
        "power_watts": 500.0,
        "temperature": 60.0,
    }
    second_gpu: dict[str, Any] = {"trouble": "GPU is lost"} if lost else {"pids": (4001,), **well}
    gpus = (
        Device(0, uuid="GPU-0", bus_id="0000:1b:00.0", pids=(4000,), **well),
        Device(1, uuid="GPU-1", bus_id="0000:1c:00.0", **second_gpu),
    )
    return DeviceSample(at, gpus, events=xids)


def case(ranks: Sequence[Rank], **changes: Any) -> Case:
    facts: dict[str, Any] = {"started": START - 2.0, "ended": None, "outcome": Outcome.RUNNING}
    facts.update({name: changes.pop(name) for name in (*facts, "asked") if name in changes})
    job = Job(
        id="20260917-101500-4711",
        command=("torchrun", "--max-restarts", "1", "train.py"),
        cwd=None,
        framework="torch",
        strategy="ddp",
        launcher="torchrun",
        world_size=len(ranks),
        hosts=("node-a",),
        exit_code=None,
        signal=None,
        **{"asked": None, **facts},
    )
    return Case(Subject("recording", "/nowhere"), job, AT, tuple(ranks), **changes)


def frame(of: Case, findings: Sequence[Finding] = (), **changes: Any) -> Frame:
    diagnosis = Diagnosis(of, (), None, "no step was measured", tuple(findings), ())
    return Frame(AT, "live", diagnosis, **changes)


def finding(code: str, title: str, since: int | None = None, *culprits: int) -> Finding:
    return Finding(
        code,
        Severity.WARNING,
        0.9,
        title,
        "",
        culprits=tuple(Culprit(culprit) for culprit in culprits),
        since_step=since,
    )


def _first_attempt() -> list[Rank]:
    """The ranks before the restart: rank 2 failed, and the launcher ended the others."""
    failure = Error(
        "ValueError",
        "loss is not finite",
        "train.py",
        87,
        "step",
        "Traceback …",
        START + 240.0,
    )
    ranks = [
        rank(
            number,
            attempt=0,
            pid=3000 + number,
            started=START + 0.2 * number,
            state=State.DEAD,
            signal=15,
            ended=START + 243.0,
        )
        for number in range(4)
    ]
    ranks[2] = replace(ranks[2], signal=None, exit_code=1, error=failure, ended=START + 241.0)
    return ranks


def _second_attempt() -> list[Rank]:
    pauses = tuple(event("gc", 40 * turn, 0.06 + 0.02 * turn, value=2.0) for turn in range(1, 8))
    short = tuple(event("gc", step, 0.004) for step in range(1, 300))
    compiled = tuple(
        event("recompile", 20 + turn, 2.5, "step train.py:31: tensor 'x' size 0: 64 became 48")
        for turn in range(4)
    )
    ranks = [rank(number, steps=steps(0, 2401)) for number in range(4)]
    ranks[0] = replace(ranks[0], events=saves())
    ranks[1] = replace(ranks[1], events=(*pauses, *short))
    ranks[3] = replace(ranks[3], events=(*compiled, event("evaluation", 600, 31.0)))
    return ranks


EVENTFUL = frame(
    case(
        _second_attempt(),
        earlier=tuple(_first_attempt()),
        device_samples=(
            devices(AT - 900.0),
            devices(AT - 600.0, False, *(XidEvent(AT - 600.5 - s, 0, 13) for s in range(3))),
            devices(AT - 120.0, True, XidEvent(AT - 121.0, 1, 79)),
            devices(AT - 60.0, True),
            devices(AT - 30.0),
        ),
        signs=(
            LogMatch(
                "nccl-timeout",
                1,
                "console",
                120,
                "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=119)",
                AT - 1000.0,
                count=3,
            ),
            LogMatch("odd", None, "console", 3, "Killed", None),
        ),
    ),
    (
        finding("straggler-input", "rank 3 is slow: its input takes 31 ms a step", 1800, 3),
        finding("coverage-low", "the phases explain 71 % of the time"),
    ),
    followed=(Followed(finding("loader-slow", "the loader was late"), AT - 400.0, AT - 340.0),),
)
