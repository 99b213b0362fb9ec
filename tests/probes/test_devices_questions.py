"""When a device is queried for what, how long an answer is used, and the threads that query."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from mgpu_probes.outside.devices import nvml_queries
from mgpu_probes.outside.devices.driver_polling import (
    ONCE,
    SLOW_CALL,
    STALE,
    LostError,
    PollingThread,
    Question,
    Rate,
)
from mgpu_probes.outside.devices.nvml_gpu import (
    ASLEEP,
    MANY_GPUS,
    NvmlGpu,
    RuntimePower,
    list_questions,
)

LONG = 60.0
"""Seconds that nothing here takes."""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(
            "mgpu_probes.outside.devices.driver_polling.time.monotonic", lambda: self.now
        )

    def taking(self, seconds: float) -> Callable[[Any], dict[str, Any]]:
        def ask(_: Any) -> dict[str, Any]:
            self.now += seconds
            return {"temperature": 50.0}

        return ask


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def raising(error: Exception) -> Callable[[Any], dict[str, Any]]:
    def ask(_: Any) -> dict[str, Any]:
        raise error

    return ask


def test_a_question_is_due_by_its_period(clock: Clock) -> None:
    question = Question("temperature", clock.taking(0), every=10)
    assert question.due(clock.now)
    question.put(None)
    assert not question.due(clock.now + 9)
    assert question.due(clock.now + 10)


def test_what_never_changes_is_asked_until_it_is_known(clock: Clock) -> None:
    error = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    question = Question("name", raising(error), every=ONCE)
    question.put(None)
    assert question.due(clock.now)
    question.ask = clock.taking(0)
    question.put(None)
    assert not question.due(clock.now + 1e9)
    assert question.newest(clock.now + 1e9) == ({"temperature": 50.0}, None)


def test_a_slow_answer_sets_the_question_apart_until_it_is_quick(clock: Clock) -> None:
    question = Question("temperature", clock.taking(10 * SLOW_CALL))
    question.put(None)
    assert question.slow
    question.ask = clock.taking(0)
    question.put(None)
    assert not question.slow


def test_what_is_known_to_be_slow_stays_apart(clock: Clock) -> None:
    question = Question("PCIe traffic", clock.taking(0), slow=True)
    assert question.newest(clock.now) == ({}, None)
    question.put(None)
    assert question.slow


def test_an_old_answer_is_no_longer_shown(clock: Clock) -> None:
    question = Question("temperature", clock.taking(0))
    question.put(None)
    assert question.newest(clock.now + STALE)[0] == {"temperature": 50.0}
    fields, trouble = question.newest(clock.now + STALE + 1)
    assert fields == {}
    assert trouble == "no answer for 30 s or longer"


@pytest.mark.parametrize(
    ("error", "loud", "trouble"),
    [
        (pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), True, "not supported"),
        (pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), False, None),
        (pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND), False, None),
        (pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION), False, "Insufficient Permissions"),
        (AttributeError("nvmlNew"), True, "not known to this version of nvidia-ml-py"),
        (AttributeError("nvmlNew"), False, None),
        (ValueError("nonsense (37100 %)"), False, "nonsense (37100 %)"),
    ],
    ids=["loud", "quiet", "no-symbol", "denied", "old-binding", "old-binding-quiet", "nonsense"],
)
def test_why_an_answer_is_missing(error: Exception, loud: bool, trouble: str | None) -> None:
    question = Question("something", raising(error), loud=loud)
    question.put(None)
    assert question.answer is not None
    assert question.answer.fields == {}
    told = question.answer.trouble
    assert told == trouble or (told is not None and trouble is not None and trouble in told)


@pytest.mark.parametrize("among", [1, MANY_GPUS - 1, MANY_GPUS])
def test_of_many_devices_the_load_alone_is_asked_each_time(among: int) -> None:
    each_time = {question.what for question in list_questions(10.0, among) if question.every == 0}
    load = {"utilization", "memory", "power"}
    assert (
        each_time == load if among == MANY_GPUS else {"temperature", "processes"} < each_time - load
    )


def test_a_lost_device_is_no_answer() -> None:
    question = Question("name", raising(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)))
    with pytest.raises(LostError):
        question.put(None)


def test_a_rate_needs_two_looks_and_a_counter_that_goes_on() -> None:
    rate = Rate()
    assert rate.of(100, 1.0) is None
    assert rate.of(300, 2.0) == 200
    assert rate.of(0, 3.0) is None
    assert rate.of(None, 4.0) is None
    assert rate.of(50, 5.0) is None
    assert rate.of(50, 6.0) == 0


@pytest.mark.parametrize(
    ("cores", "expected"), [([], ""), ([5], "5"), ([0, 1, 2, 8], "0-2,8"), ([1, 3], "1,3")]
)
def test_cores_are_written_as_the_kernel_does(cores: list[int], expected: str) -> None:
    assert nvml_queries.format_ranges(cores) == expected


def power(folder: Path, control: str, status: str) -> None:
    (folder / "0000:18:00.0/power").mkdir(parents=True, exist_ok=True)
    (folder / "0000:18:00.0/power/control").write_text(control + "\n")
    (folder / "0000:18:00.0/power/runtime_status").write_text(status + "\n")


@pytest.mark.parametrize(
    ("control", "status", "asleep"),
    [("auto", "suspended", True), ("auto", "active", False), ("on", "suspended", False)],
)
def test_the_kernel_tells_who_sleeps(
    tmp_path: Path, control: str, status: str, asleep: bool
) -> None:
    power(tmp_path, control, status)
    assert RuntimePower("0000:18:00.0", tmp_path).now() is asleep


def test_a_device_that_the_kernel_does_not_know_is_awake(tmp_path: Path) -> None:
    assert RuntimePower("0000:18:00.0", tmp_path).now() is False


def test_a_sleeping_device_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(_: Any) -> dict[str, Any]:
        asked.append(1)
        return {"temperature": 40.0}

    def questions() -> list[Question]:
        who = Question("PCI address", lambda _: {"bus_id": "0000:18:00.0"}, ONCE)
        return [who, Question("temperature", ask)]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    power(tmp_path, "auto", "active")
    gpu = NvmlGpu(0, questions, lambda bus: RuntimePower(bus, tmp_path))
    assert gpu.wake()
    gpu.put(1.0, lambda _: True)
    assert gpu.reading(1.0)["temperature"] == 40.0
    power(tmp_path, "auto", "suspended")
    assert not gpu.wake()
    gpu.put(math.inf, lambda _: True)
    asleep = gpu.reading(2.0)
    assert len(asked) == 1
    assert (asleep["temperature"], asleep["trouble"]) == (None, ASLEEP)
    assert asleep["bus_id"] == "0000:18:00.0"
    power(tmp_path, "auto", "active")
    assert gpu.wake()
    gpu.put(math.inf, lambda _: True)
    assert len(asked) == 2


def test_a_round_that_is_asked_for_begins_afterwards() -> None:
    seen: list[int] = []
    rounds = PollingThread(lambda: seen.append(len(seen)), "test")
    assert rounds.wait(rounds.ask(), LONG)
    assert rounds.wait(rounds.ask(), LONG)
    assert len(seen) == 2
    assert rounds.stop(LONG)


def test_nobody_waits_for_a_round_that_hangs() -> None:
    go = threading.Event()

    def hang() -> None:
        go.wait(LONG)

    rounds = PollingThread(hang, "test")
    assert not rounds.wait(rounds.ask(), 0)
    go.set()
    assert rounds.stop(LONG)


def test_rounds_that_were_never_asked_for_end_at_once() -> None:
    assert PollingThread(lambda: None, "test").stop(LONG)
