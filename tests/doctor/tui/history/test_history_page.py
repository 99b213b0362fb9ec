"""The page of graphs at its usual sizes against golden files, and at extreme sizes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from msgspec import structs

from mgpu_doctor.live.history_collector import Collector, History, Place
from mgpu_doctor.tui.screens.graph_screen import draw
from mgpu_doctor.tui.screens.graph_selection import LENGTHS, Choice, Kind, Subject, Window, subjects
from tests.support import histories
from tests.support.histories import BEGAN, ENDED, history
from tests.support.screens import SIZES, check

PAGES = {
    "gpus": Choice(Window(3)),
    "gpus-apart": Choice(Window(3), apart=True),
    "lost-gpu": Choice(Window(2, ENDED - 400), Subject(Kind.GPU, 2)),
    "host": Choice(Window(1), Subject(Kind.HOST), 3),
    "ranks": Choice(Window(0), Subject(Kind.RANKS), 3),
    "job": Choice(Window(0), Subject(Kind.JOB)),
}


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def text(past: History, choice: Choice, width: int, height: int, **more: str) -> str:
    reasons: dict[Place, str] = {(None, int(index[3:])): why for index, why in more.items()}
    drawn = draw(past, choice, width, height, reasons)
    assert len(drawn.lines) == len(drawn.lanes) == height
    assert max(line.cell_len for line in drawn.lines) <= width
    return "\n".join(line.plain.rstrip() for line in drawn.lines) + "\n"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, size: tuple[int, int]) -> None:
    check(f"history-{name}", text(history(), PAGES[name], *size), size[0])


@pytest.mark.parametrize("size", [(1, 1), (5, 2), (20, 5), (40, 9), (300, 90)], ids=str)
def test_any_size_and_any_choice_can_be_drawn(size: tuple[int, int]) -> None:
    for past in (history(), History(ENDED), Collector().history(BEGAN)):
        for subject in subjects(past):
            for base, measure in ((0, 0), (len(LENGTHS) - 1, 3)):
                text(past, Choice(Window(base), subject, measure), *size)


def test_why_something_was_never_sampled_is_reported_without_markup() -> None:
    told = text(history(), Choice(subject=Subject(Kind.GPU, 0)), 120, 40, gpu0="no\x1b[31m [b]fan")
    assert "never sampled: no [b]fan" in told


def test_gpus_and_hosts_of_several_hosts_are_not_mixed() -> None:
    collector = Collector.of(
        [structs.replace(histories.devices(second), host="node-b") for second in range(60)]
        + [structs.replace(histories.devices(second), host="[red]a") for second in range(60)],
        [structs.replace(histories.host(second), host="node-b") for second in range(60)],
    )
    past = collector.history(BEGAN + 60)
    there = [subject.title for subject in subjects(past)]
    assert there[:3] == ["all GPUs", "GPU 0, [red]a", "GPU 1, [red]a"]
    assert there[9] == "GPU 0, node-b"
    assert there[17:] == ["host, [red]a", "host, node-b"]
    choice = Choice(subject=Subject(Kind.GPU, 2, "node-b"))
    assert "GPU 2, node-b" in text(past, choice, 120, 40)
    assert "no samples" not in text(past, choice, 120, 40)
    assert "never sampled" in text(past, Choice(subject=Subject(Kind.HOST, host="[red]a")), 80, 24)


def test_64_gpus_are_reached_by_scrolling() -> None:
    collector = Collector()
    for second in range(10):
        sample = histories.devices(second)
        collector.add_devices(sample)
    past = collector.history(BEGAN + 10)
    many = History(past.at, {(None, index): past.devices[None, index % 8] for index in range(64)})
    drawn = draw(many, Choice(), 80, 24)
    assert (drawn.shown, drawn.most_scrolled) == (2, 6)
    for apart in (False, True):
        last = text(many, Choice(scrolled=10_000, apart=apart), 80, 24)
        assert "GPU 63" in last
        assert "GPU 0 " not in last


def test_what_is_missing_and_since_when() -> None:
    gone = text(history(), PAGES["lost-gpu"], 120, 40)
    assert "no samples 15:03:19 to 15:04:59 and 1 more" in gone
    later = History(ENDED + 120, history().devices, history().hosts)
    assert "no samples since 15:13:19" in text(later, Choice(), 160, 40)


def test_the_measure_stays_from_one_gpu_to_the_next() -> None:
    choice = Choice(subject=Subject(Kind.GPU, 0), measure=2).turned(history(), 1)
    assert (choice.subject, choice.measure) == (Subject(Kind.GPU, 1), 2)
    host = choice.on(Subject(Kind.HOST))
    assert host.measure == 0
    assert Choice().turned(history(), -1).subject == Subject(Kind.RANK, 3)


def test_a_subject_that_is_gone_gives_way_to_one_that_is_there() -> None:
    assert Choice(subject=Subject(Kind.GPU, 99)).shown(history()) == Subject(Kind.GPUS)
