"""The map of ranks by host: what it shows of slow, failed and silent ones, and its keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.rank_map import Grouping, RankGroup, map_ranks
from mgpu_doctor.live.step_heatmap import Heatmap
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.filter.language import parse
from mgpu_doctor.tui.map_panel import MapPanel
from mgpu_doctor.tui.once import document
from mgpu_doctor.tui.panels import host_map
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.screens.host_screen import HostScreen
from mgpu_doctor.tui.screens.rank_screen import RankScreen
from mgpu_doctor.tui.view import RankKey, Spot, View
from tests.support import diagnoses, multi_host
from tests.support.frames import frame, heat
from tests.support.screens import (
    GOLDEN_SIZE,
    Still,
    check_screen,
    check_sizes,
    screen_text,
    shown,
    until,
)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


EACH = 8
NODES = tuple(f"node-{number:02}.cluster" for number in range(12))
SLOW, UNMEASURED = 42, 17
STATES = {70: "dead", 75: "missing", 76: "hung"}
"""Rank -> its state; all others run."""


def changed(rank: RankSummary) -> RankSummary:
    return replace(rank, state=STATES.get(rank.rank or 0, rank.state))


def job() -> Frame:
    """A straggler, a rank that is not measured, three that do not run, a host that fell silent and
    one that never joined."""
    made = multi_host.replay_frame(NODES, EACH, SLOW)
    assert made.diagnosis is not None
    assert isinstance(made.heat, Heatmap)
    steps = replace(made.heat, excess=made.heat.excess.copy())
    steps.excess[UNMEASURED] = float("nan")
    diagnosis = replace(made.diagnosis, ranks=tuple(map(changed, made.diagnosis.ranks)))
    hosts = list(made.hosts)
    hosts[3] = replace(hosts[3], heard=45.2, silent=True, trouble="connection reset")
    late = multi_host.status(
        "spare-1.cluster", sample=None, heard=None, silent=True, trouble="Connection refused"
    )
    return structs.replace(
        made,
        source="live: 11 of 13 hosts",
        diagnosis=diagnosis,
        heat=steps,
        map=map_ranks(diagnosis, steps),
        hosts=(*hosts, late),
        replay=None,
    )


JOB = job()


def rows(width: int = 120, view: View = View(), made: Frame = JOB) -> list[str]:  # noqa: B008 - frozen
    lines = host_map.map_lines(made, width, view)
    assert isinstance(lines, Rows)
    return [line.plain.rstrip() for line in lines[len(lines.head) :]]


def row(name: str, **facts: object) -> str:
    (line,) = (line for line in rows(**facts) if name in line)  # type: ignore[arg-type]
    return line


def test_the_worst_rows_come_first_and_equals_in_the_order_of_ranks() -> None:
    assert [line[2:9] for line in rows()] == [
        "node-05", "node-08", "node-09", "node-03", "spare-1",
        "node-00", "node-01", "node-02", "node-04", "node-06", "node-07", "node-10", "node-11",
    ]  # fmt: skip
    by_name = [line[2:9] for line in rows(view=View(worst_first=False))]
    assert by_name == [*(name[:7] for name in NODES), "spare-1"]


def test_cells_are_read_without_colour() -> None:
    assert row("node-05").split()[:7] == ["▸", "node-05", "··█·····", "+101", "%", "36.5", "ms"]
    assert " ······✗· " in row("node-08")
    assert row("node-08").split()[2] == "dead"
    assert " ···○!···" in row("node-09")
    assert "2 failed" in row("node-09")
    assert " ·?······ " in row("node-02")
    assert row("node-00").split()[1] == "········"


def test_a_silent_host_says_for_how_long_and_why() -> None:
    assert row("node-03") == "  node-03 ········ last heard 45 s ago: connection reset"
    assert row("spare-1") == "  spare-1          not heard: Connection refused"
    lines = host_map.map_lines(JOB, 120, View())
    (silent,) = (line for line in lines if "node-03" in line.plain)
    assert {str(span.style) for span in silent.spans if span.start >= 10} == {"dim", "bold yellow"}


def test_the_columns_are_those_of_the_host() -> None:
    assert host_map.map_lines(JOB, 160, View())[1].plain.split() == [
        "host", "worst", "own", "work", "wait", "last", "GPU", "cpu", "memory", "ranks",
    ]  # fmt: skip
    assert row("node-07", width=160).split()[-7:] == ["57", "%", "37", "%", "20", "%", "56-63"]


@pytest.mark.parametrize("width", [30, 80, 120, 200])
def test_nothing_is_wider_than_the_panel(width: int) -> None:
    for view in (View(), View(by="stage"), View(filter=parse("rank:3"))):
        assert max(line.cell_len for line in host_map.map_lines(JOB, width, view)) <= width


def test_the_filter_keeps_hosts_by_name_and_ranks_by_number() -> None:
    assert [line[2:9] for line in rows(view=View(filter=parse("host:spare")))] == ["spare-1"]
    view = View(filter=parse("rank:0,9"))
    assert [line.split()[:2] for line in rows(view=view)] == [["node-00", "·"], ["node-01", "·"]]
    assert host_map.map_lines(JOB, 120, view)[0].plain == "2 of 96 ranks shown: rank:0,9"


def test_json_lists_the_hosts_in_the_order_of_ranks() -> None:
    told = document(JOB, View())["hosts"]
    assert [host["host"] for host in told] == [*NODES, "spare-1.cluster"]
    assert told[5]["last_fraction"] == 1.0
    assert told[5]["excess_fraction"] == pytest.approx(1.013, abs=0.002)
    assert told[5]["bytes_per_second"]["sent"] == 2.5e9
    assert (told[3]["silent"], told[3]["heard_seconds"]) == (True, 45.2)
    assert (told[9]["failed_ranks"], told[12]["ranks"]) == (2, 0)
    assert told[12]["trouble"] == "Connection refused"
    assert [host["host"] for host in document(JOB, View(filter=parse("rank:9")))["hosts"]] == [
        NODES[1]
    ]


def folded(many: int) -> Frame:
    """All ranks in one group, and each host in one."""
    made = JOB.map
    assert made is not None
    everybody = RankGroup("all", tuple(range(many)), 0.01, 0.02, 0.1, 1.0, 0, blamed=False)
    return structs.replace(JOB, map=replace(made, groupings=(Grouping("stage", (everybody,)),)))


def test_a_row_that_is_too_long_takes_several_lines() -> None:
    lines = rows(width=80, made=folded(96), view=View(by="stage"))
    cells = [line.removeprefix("  all  ").split()[0] for line in lines]
    assert "".join(cells).count("█") == 1
    assert sum(map(len, cells)) == 96
    assert len(lines) == 3
    assert "+10 %" in lines[0]
    assert "+10 %" not in "".join(lines[1:])


def test_of_two_thousand_ranks_only_the_rows_that_are_shown_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [f"node{number:03}" for number in range(250)]
    made = multi_host.spread_over_hosts(
        diagnoses.straggler(2000, 1711, Outcome.RUNNING), nodes, EACH
    )
    steps = heat(2000, 1711, steps=20)
    hosts = tuple(multi_host.status(name) for name in nodes)
    large = frame(made, heat=steps, map=map_ranks(made, steps), hosts=hosts)
    drawn: list[int] = []
    cell = host_map._Sheet._cell

    def counted(self: host_map._Sheet, place: int, *rest: object, **facts: object) -> object:
        drawn.append(place)
        return cell(self, place, *rest, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(host_map._Sheet, "_cell", counted)
    lines = host_map.map_lines(large, 120, View())
    assert len(lines) == 2 + 250
    assert "node213" in lines[2].plain
    assert len(drawn) == EACH


async def test_screen() -> None:
    app = TopApp(Still(JOB), interval=3600)
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await shown(pilot)
        await check_sizes(pilot, "hosts")


async def test_the_map_takes_the_place_of_the_other_tables_and_leaves_again() -> None:
    app = TopApp(Still(JOB), interval=3600)
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await shown(pilot)
        await pilot.press("h")
        await until(pilot, lambda: isinstance(app.focused, MapPanel), "the map")
        await until(pilot, lambda: app.view.spot == Spot(NODES[5]), "the worst host")
        await check_sizes(pilot, "hosts-alone")
        await pilot.press("h")
        await until(pilot, lambda: "─Ranks ·" in screen_text(app), "the other tables")


async def test_arrows_move_over_hosts_and_ranks_and_enter_opens_them() -> None:
    app = TopApp(Still(JOB), interval=3600)
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        await pilot.press("h", "right", "right", "right")
        slow = RankKey(SLOW, NODES[5], None)
        await until(pilot, lambda: app.view.spot == Spot(NODES[5], slow), "the slow rank")
        assert app.view.rank == slow
        text = "rank 42 on node-05.cluster: own work +101 % beyond the others, running, step 399"
        await until(pilot, lambda: text in screen_text(app), "what is known of it")
        title, worst = screen_text(app).splitlines()[6:8]
        assert title.index("▾") == worst.index("█")
        await pilot.press("down")
        below = Spot(NODES[8], RankKey(66, NODES[8]))
        await until(pilot, lambda: app.view.spot == below, "the cell below")
        await pilot.press("home", "left", "left")
        await until(pilot, lambda: app.view.spot == Spot(NODES[5], RankKey(40, NODES[5])), "home")
        assert "This key works in a replay" not in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen), "the rank's page")
        await pilot.press("escape", "left", "enter")
        await until(pilot, lambda: isinstance(app.screen, HostScreen), "the host's page")
        assert "node-05.cluster" in screen_text(app)


async def test_page_of_a_host() -> None:
    app = TopApp(Still(JOB), interval=3600)
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await shown(pilot)
        await pilot.press("h", "enter")
        await until(pilot, lambda: isinstance(app.screen, HostScreen), "the page")
        await check_screen(pilot, "host-page")
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen), "a rank's page")
        await pilot.press("escape", "n", "n", "n")
        await until(pilot, lambda: "connection reset" in screen_text(app), "the silent host")


async def test_groups_and_order_are_keys() -> None:
    app = TopApp(Still(grouped()), interval=3600)
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        await pilot.press("h", "b")
        await until(pilot, lambda: "━Ranks by stage · b group" in screen_text(app), "the stages")
        assert "▸ stage 1" in screen_text(app)
        await pilot.press("r")
        await until(pilot, lambda: "by stage · by name" in screen_text(app), "the other order")
        await pilot.press("b")
        await until(pilot, lambda: "Ranks by host" in screen_text(app), "the hosts again")


def grouped() -> Frame:
    """The job, with two stages."""
    diagnosis: Diagnosis | None = JOB.diagnosis
    assert diagnosis is not None
    staged = replace(diagnosis, stages=(tuple(range(40)), tuple(range(40, 96))))
    return structs.replace(JOB, diagnosis=staged, map=map_ranks(staged, JOB.heat))
