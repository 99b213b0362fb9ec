"""Which calls count as waits of the stream that computes, and when a process is not timed: torch's
hooks on a device whose streams do nothing."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.frameworks.torch import device_events, torch_support
from mgpu_probes.inprocess.probe_context import ProbeContext

pytestmark = pytest.mark.slow  # it loads torch

HOME, OTHER = torch.device("xpu", 0), torch.device("xpu", 1)
CALLS = """
def wait_stream(home, other):
    home.wait_stream(other)
def synchronize_stream(home, other):
    other.synchronize()
def synchronize_home(home, other):
    home.synchronize()
def synchronize_event(home, other):
    other.event().synchronize()
def synchronize_device(home, other):
    torch.xpu.synchronize()
"""


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing

    def record(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...


class Stream:
    def __init__(self, stream_id: int) -> None:
        self.stream_id, self.device = stream_id, HOME

    def wait_event(self, event: Event) -> None: ...

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.event())

    def event(self) -> Event:
        return Event()

    def synchronize(self) -> None: ...


class Watched:
    """A process of a job with two ranks that trains on a device, in a turn that is timed."""

    def __init__(self) -> None:
        self.context = ProbeContext()
        self.context.on, self.context.world_size = True, 2
        self.home, self.other = Stream(0), Stream(1)
        self.phases: list[int] = []

    def mark_device(self, mark: Any) -> None:
        """Notes the phase that begins."""
        steps: Any = SimpleNamespace(
            ledger=SimpleNamespace(
                enter=lambda phase, _: self.phases.append(phase), leave=lambda _: None
            )
        )
        mark(steps, 0)

    def call(self, name: str, module: str) -> list[int]:
        """The phases that the device's ledger enters while code of a module makes this call."""
        code = ModuleType(module)
        vars(code)["torch"] = torch
        exec(CALLS, vars(code))
        self.phases.clear()
        getattr(code, name)(self.home, self.other)
        return list(self.phases)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    device: Any = ModuleType("torch.xpu")
    device.Stream = type("Stream", (Stream,), {})
    device.Event = type("Event", (Event,), {})
    device.synchronize = lambda: None
    watched.home, watched.other = device.Stream(0), device.Stream(1)
    device.Stream.event = lambda _: device.Event()
    device.current_stream = lambda _: watched.home
    monkeypatch.setattr(torch, "xpu", device)
    for module in (device_events, torch_support):
        monkeypatch.setattr(module, "probe", watched.context, raising=False)
    monkeypatch.setattr(device_events, "home", device_events._Home())
    monkeypatch.setattr(device_events._Home, "communicating", set())
    monkeypatch.setattr(device_events._Home, "trained", set())
    monkeypatch.setattr(ProbeContext, "time_on_device", time_every_turn)
    monkeypatch.setattr(watched.context, "mark_device", watched.mark_device)
    device_events.time_on(HOME)
    return watched


def time_every_turn(context: ProbeContext, *_: Any) -> None:
    context.device_timer = SimpleNamespace(is_timing=True, drop=lambda: None)  # type: ignore[assignment]
    context.device_clock = "device"


@pytest.mark.parametrize(
    ("call", "by_deepspeed", "by_a_script"),
    [
        ("wait_stream", [layout.WAIT], [layout.TRANSFER]),
        ("synchronize_stream", [layout.WAIT], [layout.TRANSFER]),
        ("synchronize_home", [], []),
        ("synchronize_event", [layout.WAIT], []),
        ("synchronize_device", [layout.WAIT], [layout.WAIT]),
    ],
)
def test_a_wait_is_for_other_ranks_or_for_copies(
    watched: Watched, call: str, by_deepspeed: list[int], by_a_script: list[int]
) -> None:
    assert watched.call(call, "deepspeed.runtime.zero.stage3") == by_deepspeed
    assert watched.call(call, "__main__") == by_a_script
    device_events.home.communicating.add(watched.other.stream_id)
    expected = by_deepspeed if call != "synchronize_event" else []
    assert watched.call(call, "__main__") == expected


def test_a_wait_within_a_collective_counts_once(watched: Watched) -> None:
    watched.context.steps.call_begins(0)
    assert watched.call("synchronize_stream", "deepspeed.comm") == []


def test_a_process_alone_waits_for_no_rank(watched: Watched) -> None:
    watched.context.world_size = 1
    assert watched.call("synchronize_device", "__main__") == []


def untimed(watched: Watched) -> str | None:
    """Why the process is not timed, if its phases are stamped by the host."""
    context = watched.context
    is_timed = context.device_timer is not None
    assert (context.device_clock == "device") == is_timed
    assert (context.why_untimed is None) == is_timed
    return context.why_untimed


SEVERAL = "this process computes on several devices: xpu:0, xpu:1"


@pytest.mark.parametrize(
    ("devices", "reason"),
    [(["xpu:0"], None), ([], None), (["xpu:0", "xpu:1"], SEVERAL)],
)
def test_weights_on_several_devices_are_not_timed(
    watched: Watched, devices: list[str], reason: str | None
) -> None:
    device_events.trains_on(devices)
    assert untimed(watched) == reason


def test_two_optimizers_on_two_devices_are_not_timed(watched: Watched) -> None:
    for device in (HOME, OTHER):
        assert untimed(watched) is None
        device_events.trains_on([str(device)])
    assert untimed(watched) == SEVERAL


def test_a_loss_on_another_device_is_not_timed(watched: Watched) -> None:
    loss: Any = SimpleNamespace(device=OTHER)
    device_events.begin_backward(loss)
    assert untimed(watched) == SEVERAL
    device_events.time_on(HOME)
    assert untimed(watched) == SEVERAL, "it is not timed again"


@pytest.mark.parametrize(
    ("device", "reason"), [(HOME, None), (torch.device("cpu"), None), (OTHER, SEVERAL)]
)
def test_collectives_on_another_device_are_not_timed(
    watched: Watched, device: torch.device, reason: str | None
) -> None:
    device_events.communicates_on(device)
    assert untimed(watched) == reason


def test_what_is_spread_before_the_first_step_is_never_timed(watched: Watched) -> None:
    watched.context.device_timer = None
    watched.context.device_clock = "host"
    device_events.trains_on(["xpu:0", "xpu:1"])
    assert untimed(watched) == SEVERAL
    device_events.time_on(HOME)
    assert untimed(watched) == SEVERAL
