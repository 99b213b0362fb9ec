"""Marks for loops that no hook can read: `mgpu_doctor.phase` and `mgpu_doctor.step`.

A training program imports this. It imports almost nothing, and without a probe in the process,
which `mgpu-doctor run` puts there, it only checks the calls: a wrong call raises with and without
the doctor alike, and nothing else ever raises.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Protocol

    class Probe(Protocol):
        """The probe of this process: `mgpu_probes.inprocess.manual_marks.ManualMarks`."""

        def begin(self, phase: str) -> None: ...
        def end(self) -> None: ...
        def step(self) -> None: ...


PACKAGE = "_mgpu_probe"
"""The name under which the probe is in a process, if it is there."""
_open: dict[int, str] = {}
"""Thread -> the phase that it is in."""
os.register_at_fork(after_in_child=_open.clear)


class Phase:
    """A phase of the step, for a `with` statement. One object per name serves all threads."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        thread = get_ident()
        if thread in _open:
            raise RuntimeError(
                f"phase {self.name!r} begins inside phase {_open[thread]!r}: phases cannot be "
                "nested, so end the first one before"
            )
        _open[thread] = self.name
        if _probe is not None:
            _probe.begin(self.name)

    def __exit__(self, *_: object) -> None:
        if _probe is not None:
            _probe.end()
        _open.pop(get_ident(), None)


PHASES = {
    name: Phase(name)
    for name in (
        "input",
        "transfer",
        "forward",
        "backward",
        "wait",
        "optimizer",
        "checkpoint",
        "evaluation",
    )
}
"""The phases that a program can mark, by name."""


def phase(name: str) -> AbstractContextManager[None]:
    """A context manager that counts the time inside it as this phase of the step. `name` is one of
    `PHASES`, else ValueError. `wait` is a call that waits for other ranks, with its transfer. A
    phase inside a phase raises RuntimeError. Does nothing without a doctor."""
    try:
        return PHASES[name]
    except KeyError:
        raise ValueError(
            f"{name!r} is not a phase that can be marked: use {', '.join(PHASES)}"
        ) from None


def step() -> None:
    """Says that one iteration of the training loop has ended. Call it once per iteration, last, in
    the thread that trains; from then on nothing else counts as a step. Inside a phase it raises
    RuntimeError. Does nothing without a doctor."""
    if _open and get_ident() in _open:
        raise RuntimeError(
            f"step() is called inside phase {_open[get_ident()]!r}: call it after the phase ends"
        )
    if _probe is not None:
        _probe.step()


class _Unconnected:
    """Stands in for the probe until the first mark. A process that only imports the doctor, such as
    a launcher, is not touched."""

    def begin(self, phase: str) -> None:
        self._connect()
        if _probe is not None:
            _probe.begin(phase)

    def end(self) -> None:
        """Nothing has begun."""

    def step(self) -> None:
        self._connect()
        if _probe is not None:
            _probe.step()

    def _connect(self) -> None:
        global _probe
        from importlib import import_module

        _probe = None
        try:
            _probe = import_module(f"{PACKAGE}.manual_marks").connect()
        except Exception:  # the probe is of another version, or failed: the training must go on
            return


_probe: Probe | None = _Unconnected() if PACKAGE in sys.modules else None
