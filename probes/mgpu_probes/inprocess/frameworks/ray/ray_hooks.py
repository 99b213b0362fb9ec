"""Ray Train: each rank's function runs in a thread of its worker, and Ray keeps what it raises.

Ray ends a worker with exit code 1 whatever became of the function (seen with Ray 2.60), so the box
tells how that ended.
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

_trains: list[bool] = []
"""Once for each function of Ray's that trained in this process."""
FACTS = {"launcher": "ray", "main_thread_trains": False}


def patch(runner: ModuleType) -> None:
    """Follows the functions that `ThreadRunner` runs."""
    kind = getattr(runner, "ThreadRunner", None)
    run = getattr(kind, "run", None)
    construct = getattr(runner, "construct_user_exception_with_traceback", None)
    if kind is None or run is None or construct is None:  # a version that nobody has seen
        return

    @wraps(run)
    def run_followed(self: Any, target: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        return run(self, _followed(target), *args, **kwargs)

    @wraps(construct)
    def construct_recorded(error: BaseException, *args: Any, **kwargs: Any) -> Any:
        _quietly(_raised, error)
        return construct(error, *args, **kwargs)

    kind.run = run_followed
    runner.construct_user_exception_with_traceback = construct_recorded  # type: ignore[attr-defined]


def describe() -> dict[str, Any]:
    """How this process is launched, where Ray trains in it."""
    return FACTS if _trains else {}


def _followed(target: Callable[[], Any]) -> Callable[[], Any]:
    @wraps(target)
    def follow() -> Any:
        _quietly(_begins)
        result = target()
        _quietly(probe.leave, 0)
        return result

    return follow


def _begins() -> None:
    probe.adopt()
    _name_thread()
    _trains.append(True)
    probe.renew_metadata()


def _name_thread() -> None:
    """For whoever looks from outside. Linux alone."""
    try:
        with open(f"/proc/self/task/{get_native_id()}/comm", "w") as name:
            name.write(layout.TRAINS)
    except OSError:
        pass


def _raised(error: BaseException) -> None:
    """Called where Ray has caught it, with the frames of Ray's thread and of `follow` on top."""
    top = error.__traceback__
    if top is not None and top.tb_next is not None:
        if top.tb_next.tb_frame.f_code.co_filename == __file__:
            top.tb_next = top.tb_next.tb_next  # Ray counts the frames that it leaves out
        probe.record_exception(error, top.tb_next)
    if isinstance(error, SystemExit):  # Ray takes any for a failure
        probe.leave(error.code if isinstance(error.code, int) and error.code else 1)


def _quietly(act: Callable[..., Any], *args: Any) -> None:
    try:
        act(*args)
    except Exception as trouble:
        probe.fail(trouble)
