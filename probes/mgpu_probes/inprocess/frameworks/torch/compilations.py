"""Records each compilation by torch.compile as an event: its duration, the code, and the reason.

torch calls back at the begin and end of a compilation (`torch._dynamo.callback`, since 2.4). The
code and the reason for compiling it again are read from a private frame of the compiler. If that is
not found, the event lacks them.
"""

from __future__ import annotations

import os
import sys
from math import nan
from types import CodeType, FrameType, ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from .call_sites import find_user_line
from .torch_support import wrap

probe: ProbeContext

_FRAMES_CLIMBED = 64
_REASONS = ("recompile_reason", "recompile_reasons")


class _Compilation:
    """The outermost compilation that is running; nested ones are part of it."""

    depth = 0
    began = 0
    what = ""
    times = nan
    """How often this code has been compiled, including this time; NaN: unknown."""


current_compilation = _Compilation()


def patch(callback: ModuleType) -> None:
    """Registers the callbacks, and again after `torch._dynamo.reset` has removed them."""
    handler = callback.callback_handler
    wrap(type(handler), "clear", lambda *_: handler, lambda handler, _: _listen(handler))
    _listen(handler)


def _listen(handler: Any) -> None:
    handler.register_start_callback(_compile_begins)
    handler.register_end_callback(_compile_ends)


def _compile_begins(*about: Any) -> None:
    try:
        probe.sampler.give_up()  # compiled code is guarded by the functions that it calls
        if not probe.mine():
            return
        current_compilation.depth += 1
        if current_compilation.depth == 1:
            current_compilation.began = probe.clock()
            current_compilation.what, current_compilation.times = (
                _describe_compilation(*about),
                _compile_count(*about),
            )
    except Exception as trouble:
        probe.fail(trouble)


def _compile_ends(*_: Any) -> None:
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


def _compile_count(about: Any = None) -> float:
    """How often the code has been compiled: 2 for the id `3/1` (code 3, second time); NaN:
    unknown."""
    identity = str(getattr(about, "compile_id", ""))
    _, _, earlier = identity.rpartition("/")
    earlier = earlier.partition("_")[0]
    return float(earlier) + 1 if earlier.isdigit() and "/" in identity else nan


def _describe_compilation(about: Any = None) -> str:
    """`function file:line: reason`, as far as it is known; else what triggered the compilation."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_CLIMBED):
        if frame is None:
            break
        if frame.f_code.co_name == "_compile" and "code" in frame.f_code.co_varnames:
            return _describe_frame(frame)
        frame = frame.f_back
    trigger = getattr(getattr(about, "callback_trigger", None), "name", "")
    return str(trigger).lower().replace("_", " ")


def _describe_frame(compiler: FrameType) -> str:
    names = compiler.f_locals
    code = names.get("code")
    if not isinstance(code, CodeType):
        return ""
    # For code of torch's own, the user's line that calls it is more useful.
    path, line = find_user_line(compiler, code) or (code.co_filename, code.co_firstlineno)
    folder, file = os.path.split(path)
    why = next((names[name] for name in _REASONS if names.get(name)), "")
    if isinstance(why, (list, tuple)):
        why = why[0]
    location = f"{code.co_name} {os.path.join(os.path.basename(folder), file)}:{line}"
    return f"{location}: {str(why).splitlines()[0]}" if why else location
