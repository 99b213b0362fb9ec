"""A GPU is selected in its panel; its page at the usual sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from mgpu_probes.outside.processes import Owner, find_container, find_owners
from msgspec import structs
from textual.app import App

from mgpu_doctor.case.device_samples import (
    Device,
    DeviceProcess,
    DeviceSample,
    Ecc,
    MigInstance,
    NvLink,
    Pcie,
)
from mgpu_doctor.live.frame import Frame, GpuKey
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.filter.language import parse
from mgpu_doctor.tui.screens import gpu_details
from mgpu_doctor.tui.screens.gpu_screen import GpuScreen
from mgpu_doctor.tui.view import View
from tests.support.frames import AT, EIGHT_GPUS, GIB, HOSTILE, REPLAYED, STRAGGLER, gpu
from tests.support.screens import GOLDEN_SIZE, Still, check_sizes, screen_text, shown, until

WORN = gpu(
    2,
    bus_id="0000:1b:00.0",
    numa_node=1,
    cores="32-63,96-127",
    fan=0.4,
    memory_busy=0.33,
    memory_clock_mhz=2619.0,
    max_sm_clock_mhz=1980.0,
    sm_clock_mhz=705.0,
    clock_reasons=("hw_thermal", "power_cap"),
    pcie=Pcie(4, 8, 5, 16, 1.2e9, 0.3e9, 7),
    nvlinks=(
        NvLink(0, True, "switch"),
        NvLink(1, False, "switch"),
        NvLink(2, True, "switch", (("crc_flit", 0), ("replay", 12))),
    ),
    nvlink_sent=25e9,
    nvlink_received=24e9,
    ecc=Ecc(3, 1, 40, 1, 2, pending=True, failed=False),
    pids=(4002, 91),
    processes=(DeviceProcess(4002, 60 * GIB), DeviceProcess(91, GIB, "graphics")),
)
WORN_FRAME = structs.replace(STRAGGLER, devices=DeviceSample(AT, (gpu(0), gpu(1), WORN)))


def owned(pids: Sequence[int]) -> Sequence[Owner]:
    return [
        Owner(pid, "ada", "0123456789ab", ("python", "train.py", "--epochs", "3"))
        if pid > 1000
        else Owner(pid, "grace", None, ("Xorg",))
        for pid in pids
    ]


class Host(App[None]):
    """Nothing but the page."""

    def __init__(self, frame: Frame = WORN_FRAME, index: int = 2) -> None:
        super().__init__()
        self.page = GpuScreen(frame, View(gpu=GpuKey(None, index)), find=owned)

    def on_mount(self) -> None:
        self.push_screen(self.page)


async def test_screen() -> None:
    app = Host()
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await until(pilot, lambda: "ada" in screen_text(app), "whose the processes are")
        await check_sizes(pilot, "gpu")


async def test_a_gpu_is_selected_by_keys_and_opened_and_closed() -> None:
    app = TopApp(Still(WORN_FRAME))
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        app.query_one("#gpus").focus()
        await until(pilot, lambda: app.view.gpu == GpuKey(None, 0), "the first")
        await pilot.press("down", "down", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, GpuScreen), "the page")
        assert "32-63,96-127" in screen_text(app)
        await pilot.press("n", "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the main screen")
        assert app.view.gpu == GpuKey(None, 0), "the next of the last is the first"


async def test_of_filtered_gpus_the_next_one_is_shown() -> None:
    app = Host(EIGHT_GPUS, 7)
    app.page.view = app.page.view._replace(filter=parse("gpu:2,7"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n")
        await until(pilot, lambda: "GPU 2" in screen_text(app), "the other one that is shown")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device(0, name="X", trouble="GPU is lost"), "GPU is lost"),
        (Device(0), "memory         ???????? ?/? GiB"),
        (gpu(0, unified_memory=True, memory_total=None), "the host's memory"),
        (
            gpu(0, mig=True, utilization=None, instances=(MigInstance("M", 1, 0, 1, 2, (9,)),)),
            "MIG 1/0",
        ),
    ],
)
async def test_what_is_not_known_is_reported(device: Device, expected: str) -> None:
    app = Host(structs.replace(STRAGGLER, devices=DeviceSample(AT, (device,))), 0)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: expected in screen_text(app), expected)


async def test_a_gpu_that_goes_is_missed() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.page.show(structs.replace(WORN_FRAME, devices=DeviceSample(AT, ())))
        await until(pilot, lambda: "GPU 2 is not there" in screen_text(app), "why there is none")


async def test_hostile_words_are_only_words_and_a_recording_knows_no_users() -> None:
    for frame, told in (
        (HOSTILE, "[bold red]x[/]"),
        (structs.replace(REPLAYED, devices=WORN_FRAME.devices), "recordings do not contain users"),
    ):
        app = Host(frame, 0)
        async with app.run_test(size=(160, 40)) as pilot:
            await until(pilot, lambda app=app, told=told: told in screen_text(app), told)  # type: ignore[misc]
            assert not {"\x1b", "\u202e"} & set(screen_text(app))


def test_whose_a_process_is(tmp_path: Path) -> None:
    own = tmp_path / "proc/self/ns"
    own.mkdir(parents=True)
    (own / "pid").symlink_to("pid:[4026532000]")
    assert find_owners([7], tmp_path) is None, "numbers of the host mean nothing in a container"
    (own / "pid").unlink()
    (own / "pid").symlink_to("pid:[4026531836]")
    there = tmp_path / "proc/7"
    there.mkdir()
    (there / "cmdline").write_bytes(b"python\0train.py\0")
    (there / "cgroup").write_text(f"0::/docker/{'ab' * 32}\n")
    found = find_owners([7, 8], tmp_path)
    assert found is not None
    assert found[0].command == ("python", "train.py")
    assert found[0].container == "abababababab"
    assert found[0].user is not None
    assert found[1] == Owner(8)


def test_outside_of_containers_there_is_none() -> None:
    assert find_container("0::/user.slice/user-1000.slice\n") is None


@pytest.mark.parametrize("width", [40, 80, 200])
def test_why_something_is_not_known_is_reported_in_full(width: int) -> None:
    why = "not supported: utilization, power, temperature, clocks, clock event reasons, memory"
    silent = Device(0, name="NVIDIA Thing", trouble=why)
    shown_of = structs.replace(STRAGGLER, devices=DeviceSample(AT, (silent,)))
    lines = gpu_details.gpu_page_lines(shown_of, width, View(gpu=GpuKey(None, 0)))
    assert max(line.cell_len for line in lines) <= width
    assert why in " ".join(" ".join(line.plain for line in lines).split())
