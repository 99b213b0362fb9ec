"""How ranks are sorted: important ones first, unknown values last."""

from __future__ import annotations

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceProcess, DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Outcome, State
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.tui.panels import rank_table
from mgpu_doctor.tui.rank_order import memory_of, ordered
from mgpu_doctor.tui.view import Order, View
from tests.support import diagnoses
from tests.support.frames import AT, GIB, HOST, NO_GPU, STRAGGLER, frame, gpu


def rank_summary(
    number: int | None, seconds: tuple[float | None, float | None], step: int | None, at: str
) -> RankSummary:
    """`seconds` of input and wait; `at`: its host and its state."""
    host, state = at.split()
    return diagnoses.rank(
        number,
        host=host,
        phases=dict(zip(("input", "wait"), seconds, strict=True)),
        state=State(state),
        exit_code=0 if state == "running" else 1,
        last_step=step,
    )


RANKS = (
    rank_summary(0, (0.02, 0.00), 12, "b running"),
    rank_summary(1, (0.05, 0.03), 10, "a dead"),
    rank_summary(2, (None, None), None, "c hung"),
    rank_summary(3, (0.01, 0.04), 11, "a running"),
    rank_summary(None, (0.03, None), 13, "b running"),
)


@pytest.mark.parametrize(
    ("order", "expected", "back"),
    [
        (Order.RANK, [0, 1, 2, 3, None], [3, 2, 1, 0, None]),
        (Order.OWN, [1, None, 0, 3, 2], [3, 0, None, 1, 2]),
        (Order.WAIT, [3, 1, 0, 2, None], [0, 1, 3, 2, None]),
        (Order.STEP, [1, 3, 0, None, 2], [None, 0, 3, 1, 2]),
        (Order.MEMORY, [0, 3, 1, 2, None], [3, 0, 1, 2, None]),
        (Order.STATE, [2, 1, 0, 3, None], [0, 3, None, 1, 2]),
        (Order.HOST, [1, 3, 0, None, 2], [2, 0, None, 1, 3]),
    ],
)
def test_orders(order: Order, expected: list[int | None], back: list[int | None]) -> None:
    held = {0: 9.0, 3: 4.0}

    def memory(rank: RankSummary) -> float | None:
        return None if rank.rank is None else held.get(rank.rank)

    def numbers(view: View) -> list[int | None]:
        return [rank.rank for rank in ordered(RANKS, view, memory)]

    assert numbers(View(order)) == expected
    assert numbers(View(order, reversed=True)) == back


def test_memory_is_the_processes_own_then_the_devices() -> None:
    own = (DeviceProcess(4001, 5 * GIB), DeviceProcess(9, GIB))
    made = frame(
        diagnoses.straggler(outcome=Outcome.RUNNING),
        devices=DeviceSample(AT, (gpu(0), gpu(1, processes=own), gpu(2, memory_used=None))),
    )
    assert made.diagnosis is not None
    memory = memory_of(made)
    assert [memory(rank) for rank in made.diagnosis.ranks] == [60 * GIB, 5 * GIB, None, None]
    drawn = rank_table.rank_lines(made, 120, View(Order.MEMORY))
    assert "memory" in drawn[1].plain
    assert "60 GiB" in drawn[2].plain
    assert drawn[2].plain.split()[0] == "0"


def test_without_a_gpu_it_is_what_is_resident_on_this_host() -> None:
    host = HostSample(
        AT, None, None, None, None, None, processes={4001: (1.0, 3 * GIB)}, host="node-a"
    )
    made = frame(diagnoses.straggler(outcome=Outcome.RUNNING), devices=NO_GPU, host=host)
    assert made.diagnosis is not None
    second = made.diagnosis.ranks[1]
    assert memory_of(made)(second) == 3 * GIB
    elsewhere = structs.replace(made, host=structs.replace(host, host="node-b"))
    assert memory_of(elsewhere)(second) is None
    assert memory_of(structs.replace(made, host=None))(second) is None


def test_the_table_is_made_anew_only_where_something_of_it_is() -> None:
    before, view = structs.replace(STRAGGLER, devices=None), View()
    made = rank_table.rank_lines(before, 120, view)
    assert rank_table.rank_lines(structs.replace(before, at=AT + 1, late=1.0), 120, view) is made
    others = {1: (1.0, 5 * GIB)}
    for other in (
        rank_table.rank_lines(before, 121, view),
        rank_table.rank_lines(before, 120, View(reversed=True)),
        rank_table.rank_lines(structs.replace(before, diagnosis=diagnoses.hang()), 120, view),
        rank_table.rank_lines(
            structs.replace(before, host=structs.replace(HOST, processes=others)), 120, view
        ),
    ):
        assert other is not made
