"""Requests and answers between the doctor and the subprocess that traces steps: lines of JSON.

The other side runs the user's own code, so everything it sends is validated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mgpu_doctor.analysis.memory.memory_plan import (
    Checkpointing,
    Framework,
    Optimizer,
    Precision,
    Settings,
)
from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream

MOST_BYTES = 256 << 20
"""The most bytes of one answer."""

MOST = 1 << 70
"""The largest number accepted; floating-point operations per step are the largest."""
MOST_NOTES = 8
_KINDS, _PHASES = tuple(Kind), tuple(Phase)


class WireError(ValueError):
    """An invalid line from the other side."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A traced step. `flops`: of its matrix products and convolutions. `values_read`: numbers that
    the step read from tensors, which were invented. `notes`: caveats."""

    stream: Stream
    flops: int = 0
    values_read: int = 0
    framework: Framework = Framework.TORCH
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal. `target`: whether the named model can never be planned; else the step failed.
    `parameters`: their number, if the model could be built.
    """

    why: str
    target: bool
    parameters: int | None = None
    framework: Framework = Framework.TORCH


def write_request(settings: Settings, *, real: bool) -> str:
    return json.dumps(
        {
            "batch": settings.batch,
            "accumulate": settings.accumulate,
            "checkpointing": settings.checkpointing.value,
            "precision": settings.precision.value,
            "optimizer": settings.optimizer.value,
            "real": real,
        }
    )


def read_request(line: str) -> tuple[Settings, bool]:
    asked = json.loads(line)
    settings = Settings(
        batch=asked["batch"],
        accumulate=asked["accumulate"],
        checkpointing=Checkpointing(asked["checkpointing"]),
        precision=Precision(asked["precision"]),
        optimizer=Optimizer(asked["optimizer"]),
    )
    return settings, asked["real"]


def write_answer(answer: Answer | Refusal) -> str:
    if isinstance(answer, Refusal):
        body = {"why": answer.why, "target": answer.target, "parameters": answer.parameters}
        body["framework"] = answer.framework.value
        return json.dumps({"refusal": body})
    stream = answer.stream
    names: dict[str, int] = {}
    events = [
        [
            event.block,
            _PHASES.index(event.phase),
            event.size,
            _KINDS.index(event.kind),
            names.setdefault(event.name, len(names)),
        ]
        if isinstance(event, Allocated)
        else [event.block, _PHASES.index(event.phase)]
        for event in stream.events
    ]
    return json.dumps(
        {
            "events": events,
            "names": list(names),
            "steps": list(stream.steps),
            "samples": stream.samples,
            "parameters": stream.parameters,
            "flops": answer.flops,
            "values_read": answer.values_read,
            "framework": answer.framework.value,
            "notes": list(answer.notes),
        },
        separators=(",", ":"),
    )


def read_answer(line: str | bytes) -> Answer | Refusal:
    """Returns the answer in a line. Raises WireError."""
    try:
        body = json.loads(line)
        if (refusal := body.get("refusal")) is not None:
            parameters = refusal["parameters"]
            known = None if parameters is None else _number(parameters)
            framework = Framework(refusal["framework"])
            return Refusal(str(refusal["why"])[:1000], bool(refusal["target"]), known, framework)
        stream = Stream(
            tuple(_events(body["events"], [str(name)[:200] for name in body["names"]])),
            tuple(_number(place) for place in body["steps"]),
            _number(body["samples"]),
            _number(body["parameters"]),
        )
        return Answer(
            stream,
            _number(body["flops"]),
            _number(body["values_read"]),
            Framework(body["framework"]),
            tuple(str(note)[:300] for note in body["notes"][:MOST_NOTES]),
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise WireError("the tracing process did not answer with a trace") from None


def _events(listed: Any, names: list[str]) -> list[Event]:
    """Returns the events, validated: each block is allocated once and freed at most once after
    that."""
    events: list[Event] = []
    taken: set[int] = set()
    freed: set[int] = set()
    for each in listed:
        block, phase = _number(each[0]), _PHASES[_number(each[1])]
        if len(each) == 2:
            if block not in taken or block in freed:
                raise WireError
            freed.add(block)
            events.append(Freed(block, phase))
        else:
            if block in taken:
                raise WireError
            taken.add(block)
            kind, name = _KINDS[_number(each[3])], names[_number(each[4])]
            events.append(Allocated(block, _number(each[2]), kind, phase, name))
    return events


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise WireError
    return value
