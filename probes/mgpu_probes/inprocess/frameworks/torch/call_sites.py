"""Where Python calls torch.distributed: the place of each call, how often it came by, how long it
stood there."""

from __future__ import annotations

import os
import tempfile
from types import CodeType, FrameType
from typing import Any

import torch

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import Mark
from ...step_segments import Call

probe: ProbeContext

_FRAMES_CLIMBED = 24
"""In search of a caller outside torch."""
_KEPT = 1024
_MOST_PLACES = 32
"""Places in the process metadata, the dearest first."""
_MOST_CHARACTERS = 200
"""Characters of a path, its end."""

_torch_folder = os.path.dirname(torch.__file__) + os.sep
_NOT_USERS = (_torch_folder, os.path.join(os.path.dirname(_torch_folder[:-1]), "optree", ""))
"""Where it is installed, torch goes through its trees by optree."""
_INDUCTOR = os.path.join(tempfile.gettempdir(), "torchinductor_")
_GENERATED = ("<eval_with_key>", os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _INDUCTOR)
"""Where code is that torch.compile wrote."""
_places: dict[Call, Place] = {}


def is_users(file: str) -> bool:
    """Whether this is code neither of torch's, nor of the probe's, nor generated."""
    hidden = file.startswith((*_NOT_USERS, *_GENERATED)) or file.endswith("(importlib._bootstrap)")
    return not hidden


def outside(frame: FrameType | None, code: CodeType) -> tuple[str, int] | None:
    """Where `code` is, if it is the user's, else the file and line of the user's that led to
    `frame`."""
    if is_users(code.co_filename):
        return code.co_filename, code.co_firstlineno
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


class Place:
    """One line of the user's that calls one function."""

    __slots__ = ("began", "call", "count", "elements", "nanoseconds", "returned", "through", "word")

    def __init__(self, call: Call, returned: Mark) -> None:
        self.call = call
        self.returned = returned
        """The mark at the end of a call."""
        self.word = 0
        """Of the now cell; 0: not known yet."""
        self.began = self.count = self.nanoseconds = 0
        self.elements: int | None = None
        """Of the tensor that its first call moved, where there is one."""
        self.through: str | None = None
        """The file of torch's that calls on behalf of this line, where it does not call itself."""

    def spell(self) -> int:
        """The word that shows this place in the now cell."""
        if not self.word and probe.box is not None:
            file, line, name = self.call
            self.word = probe.box.site(f"{name} {file}:{line}")
        return self.word


class Places:
    """The places that call one function. `waits`: it is a wait for an earlier call."""

    def __init__(self, name: str, *, recurs: bool = True, waits: bool = False) -> None:
        self._name = name
        self.recurs = recurs
        self._waits = waits
        self._known: dict[tuple[int, int], Place] = {}
        self._codes: list[CodeType] = []
        """Kept, so that their ids stay theirs; their hashes cost microseconds."""

    def of(self, frame: FrameType | None) -> Place:
        """The first caller outside torch, from `frame` on."""
        caller = frame
        for _ in range(_FRAMES_CLIMBED):
            if frame is None:
                break
            code = frame.f_code
            key = (id(code), frame.f_lasti)
            known = self._known.get(key)
            if known is not None:
                return known
            file = code.co_filename
            if is_users(file):
                if len(self._known) >= _KEPT:
                    self._known.clear()
                    self._codes.clear()
                self._codes.append(code)
                self._known[key] = place = self._at(file, frame.f_lineno)
                if caller is not None and caller is not frame:
                    place.through = caller.f_code.co_filename[len(_torch_folder) :]
                return place
            frame = frame.f_back
        return self._at("?", 0)

    def _at(self, file: str, line: int) -> Place:
        call = (file, line, self._name)
        if len(_places) >= _KEPT and call not in _places:
            call = ("?", 0, self._name)
        place = _places.get(call)
        if place is None:
            _places[call] = place = Place(call, self._mark(call))
        return place

    def _mark(self, call: Call) -> Mark:
        if self._waits:
            return Steps.call_ends

        def returned(steps: Steps, now: int) -> None:
            steps.call_ends(now, call, recurs=self.recurs)

        return returned


def tensor_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The first tensor among a call's arguments, or in a list of them."""
    for given in (*args, *kwargs.values()):
        value = given[0] if isinstance(given, (list, tuple)) and given else given
        if isinstance(value, torch.Tensor):
            return value
    return None


def _calls() -> dict[str, Any]:
    called = [place for place in _places.values() if place.count]
    called.sort(key=lambda place: place.nanoseconds, reverse=True)
    return {"calls": [_describe(place) for place in called[:_MOST_PLACES]]}


def _describe(place: Place) -> dict[str, Any]:
    file, line, name = place.call
    return {
        "name": name,
        "site": f"{file[-_MOST_CHARACTERS:]}:{line}",
        "count": place.count,
        "seconds": place.nanoseconds / 1e9,
        "elements": place.elements,
        "through": place.through and place.through[-_MOST_CHARACTERS:],
    }


def _start_anew() -> None:
    """In a new box: a forked child counts its own calls, and its texts lie elsewhere."""
    for place in _places.values():
        place.word = place.count = place.nanoseconds = 0


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_calls)
    context.add_reset(_start_anew)
