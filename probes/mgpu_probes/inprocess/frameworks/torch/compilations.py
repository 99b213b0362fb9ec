"""torch.compile: each compilation as an event, in the step that it holds up.

torch tells when one begins and ends (`torch._dynamo.callback`, there since 2.4). What is compiled,
and why again, stands in a frame of the compiler, which is private: where it is not found, the event
does not tell.
"""

from __future__ import annotations

import os
import sys
from math import nan
from types import CodeType, FrameType, ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from .call_sites import outside
from .torch_support import wrap

probe: ProbeContext

_FRAMES_CLIMBED = 64
_REASONS = ("recompile_reason", "recompile_reasons")


class _Compilation:
    """The one that runs; those inside it belong to it."""

    depth = 0
    began = 0
    what = ""
    times = nan
    """How often this code has been compiled, with this one."""


current_compilation = _Compilation()


def patch(callback: ModuleType) -> None:
    """Has torch tell of compilations. `torch._dynamo.reset` forgets who wants to know."""
    handler = callback.callback_handler
    wrap(type(handler), "clear", lambda *_: handler, lambda handler, _: _listen(handler))
    _listen(handler)


def _listen(handler: Any) -> None:
    handler.register_start_callback(_begins)
    handler.register_end_callback(_ends)


def _begins(*about: Any) -> None:
    try:
        if not probe.mine():
            return
        current_compilation.depth += 1
        if current_compilation.depth == 1:
            current_compilation.began = probe.clock()
            current_compilation.what, current_compilation.times = _compiled(*about), _times(*about)
    except Exception as trouble:
        probe.fail(trouble)


def _ends(*_: Any) -> None:
    try:
        if not current_compilation.depth or not probe.mine():
            return
        current_compilation.depth -= 1
        if not current_compilation.depth:
            took = probe.clock() - current_compilation.began
            probe.event(
                layout.RECOMPILED,
                current_compilation.began,
                took,
                current_compilation.times,
                current_compilation.what,
            )
    except Exception as trouble:
        probe.fail(trouble)


def _times(about: Any = None) -> float:
    """From an id such as `3/1`: code 3, compiled for the second time."""
    identity = str(getattr(about, "compile_id", ""))
    _, _, earlier = identity.rpartition("/")
    earlier = earlier.partition("_")[0]
    return float(earlier) + 1 if earlier.isdigit() and "/" in identity else nan


def _compiled(about: Any = None) -> str:
    """`function file:line: reason`, as far as the compiler's own frame tells."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_CLIMBED):
        if frame is None:
            break
        if frame.f_code.co_name == "_compile" and "code" in frame.f_code.co_varnames:
            return _described(frame)
        frame = frame.f_back
    trigger = getattr(getattr(about, "callback_trigger", None), "name", "")
    return str(trigger).lower().replace("_", " ")


def _described(compiler: FrameType) -> str:
    names = compiler.f_locals
    code = names.get("code")
    if not isinstance(code, CodeType):
        return ""
    # A module of torch's own is known by who calls it.
    path, line = outside(compiler, code) or (code.co_filename, code.co_firstlineno)
    folder, file = os.path.split(path)
    why = next((names[name] for name in _REASONS if names.get(name)), "")
    if isinstance(why, (list, tuple)):
        why = why[0]
    location = f"{code.co_name} {os.path.join(os.path.basename(folder), file)}:{line}"
    return f"{location}: {str(why).splitlines()[0]}" if why else location
