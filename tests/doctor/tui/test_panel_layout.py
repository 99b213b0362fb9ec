"""How the panels share the height of the screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.live.frame import Frame, GpuKey
from mgpu_doctor.live.history_collector import Collector
from mgpu_doctor.live.process_list import ListedProcess
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.panel_layout import Wish, shared, useful
from tests.support.frames import AT, EIGHT_GPUS, HOST, STRAGGLER, gpu
from tests.support.screens import Still, screen_text, shown, until

WISHES = st.lists(
    st.builds(Wish, st.integers(0, 300), st.integers(1, 9), st.just(1), st.just(0)), max_size=6
)
SMALL_WISHES = st.builds(Wish, *[st.integers(1, 9)] * 3, st.integers(0, 1))


@given(st.integers(-5, 300), WISHES)
def test_nothing_is_left_over_while_somebody_wishes_for_it(room: int, wishes: list[Wish]) -> None:
    lines = shared(room, wishes)
    assert sum(lines) == min(max(0, room), sum(wish.lines for wish in wishes))
    assert all(0 <= line <= wish.lines for line, wish in zip(lines, wishes, strict=True))


def test_where_all_want_more_weights_decide() -> None:
    assert shared(18, [Wish(70, 5), Wish(70, 7), Wish(70, 3), Wish(70, 3)]) == [5, 7, 3, 3]
    assert shared(18, [Wish(2, 5), Wish(70, 7), Wish(4, 3), Wish(70, 3)]) == [2, 9, 4, 3]


@given(st.integers(-5, 40), st.lists(SMALL_WISHES, max_size=5))
def test_nobody_gets_too_little_to_show_anything(room: int, wishes: list[Wish]) -> None:
    lines = useful(room, tuple(wishes))
    assert sum(lines) <= max(0, room)
    for got, wish in zip(lines, wishes, strict=True):
        assert got == 0 or min(wish.least, wish.lines) <= got <= wish.lines


async def test_a_tiny_screen_shows_ranks_rather_than_titles() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(40, 10)) as pilot:
        await shown(pilot)
        await until(pilot, lambda: "▸    2     399" in screen_text(app), "the culprit")
        assert "Ranks" in screen_text(app)
        assert "Steps" not in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "Steps" in screen_text(app), "all panels")


@pytest.mark.parametrize("many", [8, 9])
async def test_a_small_screen_shows_all_gpus_while_there_is_room(many: int) -> None:
    devices = DeviceSample(AT, tuple(gpu(index) for index in range(many)))
    frame = Frame(at=AT, source="live", devices=devices, host=HOST, hint="no job")
    app = TopApp(Still(frame), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        assert f"  {many - 1} ███" in screen_text(app)


async def test_a_small_screen_lists_all_gpus_beside_the_verdict() -> None:
    app = TopApp(Still(EIGHT_GPUS), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await until(pilot, lambda: "rank 2 is slow" in screen_text(app), "the verdict")
        gpus = _rows(app, "GPUs")
        assert [(row[:38].rstrip(), row[40:].rstrip()) for row in gpus] == [
            (" 0 ████  90%   60/80Gi  60°C rank 0", " 4 ????    ?   64/80Gi  64°C pid 4004"),
            (" 1 ████  91%   61/80Gi  61°C rank 1", " 5 ? not supported: memory, utilizat…"),
            (" 2 ████  92%   62/80Gi  62°C rank 2", " 6 ████  96%     ?/?Gi  66°C pid 4006"),
            (" 3 ✗ GPU is lost", " 7 ████  97%   67/80Gi  67°C 3 pids"),
        ]
        await pilot.click("#gpus", offset=(45, 2))
        await until(pilot, lambda: app.view.gpu == GpuKey(None, 5), "the GPU under the pointer")
        await pilot.press("up", "up")
        await until(pilot, lambda: app.view.gpu == GpuKey(None, 3), "the end of the left column")
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: len(_rows(app, "GPUs")) == 9, "a line for each")


@pytest.mark.parametrize(
    ("size", "job", "graphs", "finding"),
    [
        ((80, 24), False, 0, False),
        ((100, 30), False, 6, False),
        ((120, 40), False, 10, False),
        ((80, 24), True, 0, False),
        ((120, 40), True, 0, True),
        ((80, 50), True, 9, True),  # although the finding has the same weight
        ((120, 48), True, 6, True),
        ((200, 60), True, 5, True),
    ],
)
async def test_lines_that_are_left_show_the_past_of_the_machine(
    size: tuple[int, int], job: bool, graphs: int, finding: bool
) -> None:
    sample, collector = DeviceSample(AT, tuple(map(gpu, range(8)))), Collector()
    for ago in (2, 1, 0):
        collector.add_devices(structs.replace(sample, at=AT - ago))
        collector.add_host(structs.replace(HOST, at=AT - ago))
    processes = tuple(ListedProcess(pid, gpus=(0,)) for pid in range(20))
    past = collector.history(AT)
    idle = Frame(at=AT, source="live", host=HOST, processes=processes)
    frame = structs.replace(STRAGGLER if job else idle, devices=sample, history=past)
    app = TopApp(Still(frame), interval=3600)
    async with app.run_test(size=size) as pilot:
        await shown(pilot)
        last = "Findings" if job else "Processes"
        await until(pilot, lambda: last in screen_text(app), "all panels")
        assert ("Selected finding" in screen_text(app)) is finding
        assert len(_rows(app, "Machine") if "─Machine─" in screen_text(app) else ()) == graphs
        assert len(_rows(app, "GPUs")) in (4, 9), "all GPUs are listed"


async def test_a_warning_of_a_gpu_is_seen_where_two_are_in_a_line() -> None:
    hot = gpu(7, clock_reasons=("hw_thermal",), pids=(4000, 4001, 4003))
    devices = DeviceSample(AT, (*map(gpu, range(7)), hot))
    app = TopApp(Still(structs.replace(STRAGGLER, devices=devices)), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await until(pilot, lambda: len(_rows(app, "GPUs")) == 4, "two in a line")
        assert _rows(app, "GPUs")[3].rstrip().endswith("67°C 3 ranks !")


def _rows(app: TopApp, title: str) -> list[str]:
    """The lines of the panel with this title."""
    lines = screen_text(app).splitlines()
    first = next(place for place, line in enumerate(lines) if line[1:].startswith(title)) + 1
    return lines[first : next(i for i, line in enumerate(lines) if i >= first and line[0] in "─━")]


async def test_among_many_gpus_the_greeting_keeps_to_its_keys() -> None:
    devices = DeviceSample(AT, tuple(gpu(index) for index in range(64)))
    app = TopApp(Still(Frame(at=AT, source="live", devices=devices, host=HOST)), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        small = screen_text(app)
        assert "attach to a running job" in small
        assert " 47 ███" in small
        await pilot.resize_terminal(80, 90)
        await until(pilot, lambda: " 63 ███" in screen_text(app), "the large screen")
        assert "frameworks" in screen_text(app)


async def test_the_selected_finding_is_shown_in_full_where_there_is_room() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        assert "─Selected finding─" in screen_text(app)
        assert "fix       let worker" in screen_text(app)
        await pilot.press("down")
        await until(
            pilot,
            _not_in(app, "fix       let worker"),
            "the next finding",
        )
        await pilot.resize_terminal(80, 24)
        await until(pilot, _not_in(app, "Selected finding"), "the small screen")


def _not_in(app: TopApp, words: str) -> Callable[[], bool]:
    return lambda: words not in screen_text(app)
