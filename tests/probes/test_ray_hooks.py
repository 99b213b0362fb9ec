"""How the probe follows the functions that Ray Train runs in a thread of its workers."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.exits import ExitRecorder
from mgpu_probes.inprocess.frameworks import ray
from mgpu_probes.inprocess.frameworks.ray import ray_hooks
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.inprocess.process_metadata import describe_process

from mgpu_doctor.recording.box import Box, read_box

RAY = """
class ThreadRunner:
    def run(self, target):
        try:
            return target()
        except BaseException as error:
            return construct_user_exception_with_traceback(error, exclude_frames=1)

def construct_user_exception_with_traceback(error, exclude_frames=0):
    return [each.name for each in extract_tb(error.__traceback__)][exclude_frames:]
"""
"""As in Ray 2.60: what it tells its users leaves its own frames out by their number."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[], Any]], Any]:
    """Ray's `ThreadRunner.run` in a rank with a box."""
    context = ProbeContext()
    context.on, context.rank, context.world_size = True, 1, 2
    context.box = Writer.open(tmp_path, rank=1, local_rank=1, world_size=2)
    context.describe = partial(describe_process, context)
    context.record_exception = ExitRecorder(context).record
    context.add_adapter(ray.ADAPTER)
    monkeypatch.setattr(ray_hooks, "_trainings", [])
    monkeypatch.setattr(ray_hooks, "_name_thread", lambda: None)  # here it is that of the tests
    runner = ModuleType("thread_runner")
    runner.__dict__["extract_tb"] = traceback.extract_tb
    exec(RAY, runner.__dict__)
    (module,) = ray.ADAPTER.modules
    ray.ADAPTER.attach(context, module, runner)
    return runner.ThreadRunner().run  # type: ignore[no-any-return]


def box(folder: Path) -> Box:
    (path,) = folder.glob("*.box")
    return read_box(path)


def test_a_function_that_returns_has_trained_well(run: Callable[..., Any], tmp_path: Path) -> None:
    assert run(lambda: 7) == 7
    left = box(tmp_path)
    assert (left.state, left.exit_code) == (layout.STATES[layout.ENDED_CLEAN], 0)
    assert left.birth["launcher"] == "ray"
    assert left.birth["main_thread_trains"] is False


def test_what_a_function_raises_is_the_ranks_and_ray_sees_it_as_ever(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    def learn() -> None:
        raise ValueError("odd rows")

    assert run(learn) == ["learn"]
    left = box(tmp_path)
    assert left.exit_code is None
    words = left.last_words
    said = [words[name] for name in ("type", "message", "function")]
    assert said == ["ValueError", "odd rows", "learn"]
    assert ray_hooks.__file__ not in str(words["traceback"])


@pytest.mark.parametrize(("asked", "code"), [(3, 3), (0, 1), ("no GPU", 1)])
def test_who_exits_is_a_failure_to_ray(
    run: Callable[..., Any], tmp_path: Path, asked: object, code: int
) -> None:
    run(lambda: sys.exit(asked))  # type: ignore[arg-type]  # sys.exit takes any object
    assert box(tmp_path).exit_code == code


def test_the_thread_can_be_reported_from_outside() -> None:
    names = []

    def trains() -> None:
        ray_hooks._name_thread()
        names.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())

    thread = threading.Thread(target=trains)
    thread.start()
    thread.join()
    assert names == [layout.TRAINS + "\n"]


def test_another_version_of_ray_is_left_alone() -> None:
    runner = ModuleType("thread_runner")
    ray_hooks.patch(runner)
    runner.ThreadRunner = type("ThreadRunner", (), {})  # type: ignore[attr-defined]
    ray_hooks.patch(runner)
    assert not hasattr(runner.ThreadRunner, "run")
