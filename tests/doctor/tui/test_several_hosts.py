"""GPUs of several hosts on one screen: kept apart, and joined to the ranks of their own host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs
from textual.app import App

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Culprit
from mgpu_doctor.live.frame import Frame, GpuKey
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.filter.language import parse
from mgpu_doctor.tui.filter.matching import shown, used
from mgpu_doctor.tui.once import document
from mgpu_doctor.tui.panels import gpu_table
from mgpu_doctor.tui.rank_order import memory_of
from mgpu_doctor.tui.screens import gpu_details
from mgpu_doctor.tui.screens.gpu_screen import GpuScreen
from mgpu_doctor.tui.view import View
from tests.support import diagnoses, multi_host
from tests.support.frames import AT, GIB, frame, gpu
from tests.support.metadata import with_metadata
from tests.support.screens import GOLDEN_SIZE, Still, check_sizes, screen_text, until
from tests.support.screens import shown as first_shown

HOSTS = ("node-a", "node-b")
TWO = multi_host.replay_frame(HOSTS, 2, 2)


def rows(made: Frame, width: int = 120, view: View = View()) -> list[str]:  # noqa: B008 - frozen
    return [line.plain.rstrip() for line in gpu_table.gpu_lines(made, width, view)]


def alone(made: Frame) -> Frame:
    """The same, where the drivers list no process."""
    assert made.devices is not None
    samples = [
        structs.replace(
            one, devices=tuple(structs.replace(device, pids=()) for device in one.devices)
        )
        for one in (made.devices, *made.elsewhere)
    ]
    return structs.replace(made, devices=samples[0], elsewhere=tuple(samples[1:]))


def test_a_pid_is_joined_on_its_own_host_alone() -> None:
    assert used(TWO) == {0: (0,), 1: (1,), 2: (2,)}
    assert [row.split()[:2] for row in rows(TWO)[1:]] == [
        ["0", "node-a"],
        ["1", "node-a"],
        ["0", "node-b"],
        ["1", "node-b"],
    ]
    told = [row.rpartition("MHz")[2].split() for row in rows(TWO)[1:4]]
    assert told == [["rank", "0"], ["rank", "1"], ["rank", "2"]]
    stranger = structs.replace(TWO, elsewhere=(structs.replace(TWO.elsewhere[0], host="node-x"),))
    assert used(stranger) == {2: (0,)}


def test_an_index_is_joined_on_its_own_host_alone() -> None:
    made = alone(TWO)
    assert made.diagnosis is not None
    case = made.diagnosis.case
    ranks = tuple(
        with_metadata(
            replace(rank, device=f"cuda:{(rank.rank or 0) % 2}"), device_order="PCI_BUS_ID"
        )
        for rank in case.ranks
    )
    made = structs.replace(
        made, diagnosis=replace(made.diagnosis, case=replace(case, ranks=ranks, job=case.job))
    )
    assert used(made) == {0: (0,), 1: (1,), 2: (2,), 3: (3,)}
    assert "rank 3 ran on it" in rows(made)[-1]


def test_memory_is_that_of_the_own_gpu() -> None:
    assert TWO.diagnosis is not None
    assert TWO.devices is not None
    fuller = structs.replace(TWO.devices.devices[0], memory_used=71 * GIB)
    made = structs.replace(
        TWO, devices=structs.replace(TWO.devices, devices=(fuller, TWO.devices.devices[1]))
    )
    of = memory_of(made)
    assert [of(rank) for rank in TWO.diagnosis.ranks] == [60 * GIB, 61 * GIB, 71 * GIB, None]


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("host:node-b", [("node-b", 0), ("node-b", 1)]),
        ("host:node-a & gpu:1", [("node-a", 1)]),
        ("gpu:0", [("node-a", 0), ("node-b", 0)]),
        ("rank:2", [("node-b", 0)]),
        ("pid:4000", [("node-a", 0), ("node-b", 0)]),
    ],
)
def test_filters_know_the_host_of_a_gpu(typed: str, left: list[tuple[str, int]]) -> None:
    assert [one.which for one in shown(TWO, parse(typed)).gpus] == left
    assert rows(TWO, view=View(filter=parse(typed)))[0].startswith(f"{len(left)} of 4 GPUs shown")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_hosts_are_distinguished_however_narrow(width: int) -> None:
    for names in (
        ("a.cluster.local", "b.cluster.local"),
        ("gpu.one.example.org", "gpu.two.example.org"),
        ("10.0.1.7", "10.0.2.7"),
        ("a-rather-long-name-0001", "a-rather-long-name-0002"),
        ("[red]x", "\x1b[31my"),
    ):
        made = rows(multi_host.replay_frame(names, 2, 2), width)
        assert len({row.split()[1] for row in made[1:]}) == 2, made
        assert max(map(len, made)) <= width
        assert "\x1b" not in "".join(made)


def test_one_host_has_no_column_and_hosts_without_gpus_say_so() -> None:
    one = DeviceSample(AT, (gpu(0),), host="node-b")
    bare = DeviceSample(AT, (), "no NVIDIA driver", host="node-a")
    made = Frame(AT, "r", devices=one, elsewhere=(bare,))
    assert rows(made)[0] == "No GPU seen on node-a: no NVIDIA driver"
    assert "host" not in rows(made)[1]
    two = structs.replace(made, elsewhere=(bare, structs.replace(bare, host="node-c")))
    assert rows(two)[0] == "No GPU seen on 2 of 3 hosts"
    assert rows(structs.replace(made, devices=bare)) == ["No GPU seen: no NVIDIA driver"]


def test_a_gpu_without_a_rank_is_accused_on_its_own_host_alone() -> None:
    accused = replace(
        diagnoses.LOW_COVERAGE, culprits=(Culprit(None, host="node-b", device="GPU 1"),)
    )
    found = multi_host.spread_over_hosts(diagnoses.straggler(4, 2, Outcome.RUNNING), HOSTS, 2)
    first, second = multi_host.samples(HOSTS, 2)
    made = frame(replace(found, findings=(accused,)), devices=second, elsewhere=(first,))

    def page(host: str) -> str:
        return "\n".join(
            line.plain for line in gpu_details.gpu_page_lines(made, 120, View(gpu=GpuKey(host, 1)))
        )

    assert accused.code in page("node-b")
    assert accused.code not in page("node-a")
    assert "GPU 1 of node-b" in page("node-b")
    assert "GPU 1 of node-x is not there" in page("node-x")


def test_processes_are_those_of_the_selected_gpu() -> None:
    lines = gpu_details.process_lines(TWO, 120, View(gpu=GpuKey("node-b", 0)), gpu_details.Owners())
    assert [line.plain.split()[:2] for line in lines] == [["pid", "rank"], ["4000", "2"]]


def test_json_tells_of_one_host_as_its_schema_has_it() -> None:
    told = document(TWO, View(filter=parse("gpu:0")))
    assert told["devices"]["host"] == "node-b"
    assert [device["index"] for device in told["devices"]["devices"]] == [0]
    assert told["left_out"]["devices"] == 1


async def test_keys_go_from_one_host_to_the_next() -> None:
    app = TopApp(Still(TWO), interval=3600)
    async with app.run_test(size=(120, 40)) as pilot:
        await first_shown(pilot)
        app.query_one("#gpus").focus()
        await until(pilot, lambda: app.view.gpu == GpuKey("node-a", 0), "the first")
        await pilot.press("down", "down")
        await until(pilot, lambda: app.view.gpu == GpuKey("node-b", 0), "the next host's")
        await pilot.press("enter")
        await until(pilot, lambda: "GPU 0 of node-b" in screen_text(app), "its page")
        assert isinstance(app.screen, GpuScreen)
        await pilot.press("p", "escape")
        await until(pilot, lambda: app.view.gpu == GpuKey("node-a", 1), "the one before")


class Host(App[None]):
    """Nothing but the page."""

    def on_mount(self) -> None:
        self.push_screen(GpuScreen(TWO, View(gpu=GpuKey("node-b", 0))))


async def test_page_of_a_gpu() -> None:
    app = Host()
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await check_sizes(pilot, "gpu-of-two-hosts")


async def test_many_hosts_leave_the_other_panels_their_lines() -> None:
    made = multi_host.replay_frame([f"node-{number:02}" for number in range(32)], 8, 9)
    app = TopApp(Still(made), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await first_shown(pilot)
        await until(pilot, lambda: "▸    9" in screen_text(app), "the culprit")
        drawn = screen_text(app)
        assert "─GPUs of 32 hosts─" in drawn
        assert "straggler-input" in drawn
        assert app.query_one("#gpus").size.height <= 5
        app.query_one("#gpus").focus()
        await until(pilot, lambda: app.view.gpu is not None, "the first")
        app.view = app.view._replace(gpu=GpuKey("node-31", 7))
        await until(pilot, lambda: "  7 node-31 ✗ GPU is lost" in screen_text(app), "the last")
