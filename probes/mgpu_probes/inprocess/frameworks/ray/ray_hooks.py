"""Follows the user's training function in a worker of Ray Train, which runs it in a thread.

Ray catches what the function raises, and ends every worker with exit code 1, also after success
(seen with Ray 2.60). Therefore the box records how the function ended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_native_id
from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext

probe: ProbeContext

_trainings: list[bool] = []
"""One entry per training function that has run in this process."""
FACTS = {"launcher": "ray", "main_thread_trains": False}


def patch(runner: ModuleType) -> None:
    """Wraps `ThreadRunner.run` and the function that packs up the user's exception."""
    kind = getattr(runner, "ThreadRunner", None)
    run = getattr(kind, "run", None)
    construct = getattr(runner, "construct_user_exception_with_traceback", None)
    if kind is None or run is None or construct is None:  # another version of Ray
        return

    @wraps(run)
    def run_followed(self: Any, target: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        return run(self, _follow(target), *args, **kwargs)

    @wraps(construct)
    def construct_recorded(error: BaseException, *args: Any, **kwargs: Any) -> Any:
        _run_safely(_record_exception, error)
        return construct(error, *args, **kwargs)

    kind.run = run_followed
    runner.construct_user_exception_with_traceback = construct_recorded  # type: ignore[attr-defined]


def describe() -> dict[str, Any]:
    """The launcher's facts for the process metadata; empty if Ray runs no training here."""
    return FACTS if _trainings else {}


def _follow(target: Callable[[], Any]) -> Callable[[], Any]:
    @wraps(target)
    def follow() -> Any:
        _run_safely(_training_begins)
        result = target()
        _run_safely(probe.leave, 0)
        return result

    return follow


def _training_begins() -> None:
    probe.adopt()
    _name_thread()
    _trainings.append(True)
    probe.renew_metadata()


def _name_thread() -> None:
    """Names the training thread, so that readers of stacks can tell it apart. Linux only."""
    try:
        with open(f"/proc/self/task/{get_native_id()}/comm", "w") as name:
            name.write(layout.TRAINS)
    except OSError:
        pass


def _record_exception(error: BaseException) -> None:
    """Records the user's exception after Ray has caught it, without the frames of Ray's thread and
    of `follow` on top of its traceback."""
    top = error.__traceback__
    if top is not None and top.tb_next is not None:
        if top.tb_next.tb_frame.f_code.co_filename == __file__:
            top.tb_next = top.tb_next.tb_next  # Ray counts the frames that it leaves out
        probe.record_exception(error, top.tb_next)
    if isinstance(error, SystemExit):  # Ray takes any for a failure
        probe.leave(error.code if isinstance(error.code, int) and error.code else 1)


def _run_safely(act: Callable[..., Any], *args: Any) -> None:
    try:
        act(*args)
    except Exception as trouble:
        probe.fail(trouble)
