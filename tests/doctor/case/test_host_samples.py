"""Lines of host.jsonl: current, old and hostile ones."""

from __future__ import annotations

from typing import Any

import pytest

from mgpu_doctor.case.host_samples import Cores, Group, Task, parse_cores, read_host_sample


def parsed(**line: Any) -> Any:
    return read_host_sample({"at": 5.0, **line})


def test_an_old_line_has_processes_and_nothing_else() -> None:
    sample = parsed(processes={"7": [1.5, 4096]}, cpu_percent=50.0)
    assert sample.processes == {7: (1.5, 4096)}
    assert (sample.tasks, sample.groups, sample.pressure) == ({}, {}, {})
    assert (sample.host, sample.busy, sample.iowait, sample.steal) == (None, None, None, None)


def test_a_whole_line() -> None:
    task = {
        "parent": 1,
        "state": "D",
        "threads": 4,
        "age": 9.5,
        "ran": 2.5,
        "queued": 0.5,
        "all_queued": 0.75,
        "cores": "0-1,4",
        "limits": ["/a/b", "/a"],
        "faults": 900,
        "kernel": 0.25,
        "room": 4096,
    }
    sample = parsed(
        host="node",
        tasks={"7": task},
        groups={"/a": {"quota": 2.0, "throttled": 1.5}, "/a/b": {"quota": 0.5}},
        busy=10.0,
        iowait=1.0,
        steal=2.0,
        pressure={"cpu": 3.0, "io": 4.0, "unheard": 5.0},
    )
    cores, groups = Cores({0, 1, 4}), ("/a/b", "/a")
    assert sample.tasks == {7: Task(1, "D", 4, 9.5, 2.5, 0.5, 0.75, cores, groups, 900, 0.25, 4096)}
    assert sample.groups == {"/a": Group(2.0, 1.5), "/a/b": Group(0.5, None)}
    assert (sample.host, sample.busy, sample.iowait, sample.steal) == ("node", 10.0, 1.0, 2.0)
    assert sample.pressure == {"cpu": 3.0, "io": 4.0}


def test_no_limits_and_unknown_limits_are_two_things() -> None:
    sample = parsed(tasks={"7": {"limits": []}, "8": {}})
    assert sample.tasks[7].limits == ()
    assert sample.tasks[8].limits is None


@pytest.mark.parametrize(
    "hostile",
    [
        {"tasks": []},
        {"tasks": {"x": {}, "9" * 20: {}, "\u00b2": {}, "7": 3}},
        {"groups": {"a": 3}, "pressure": [1], "busy": "much", "host": 3},
    ],
)
def test_what_has_the_wrong_shape_is_left_out(hostile: dict[str, Any]) -> None:
    sample = parsed(**hostile)
    assert (sample.tasks, sample.groups, sample.pressure) == ({}, {}, {})
    assert (sample.host, sample.busy) == (None, None)


def test_values_of_the_wrong_type_are_unknown() -> None:
    wrong = {
        "state": "DRS",
        "parent": 1.5,
        "ran": "1",
        "queued": float("inf"),
        "cores": 3,
        "limits": "x",
    }
    task = parsed(tasks={"7": wrong}).tasks[7]
    assert task == Task()
    assert parsed(tasks={"7": {"state": ["D"]}}).tasks[7] == Task()


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("0", {0}),
        ("0-2,7", {0, 1, 2, 7}),
        ("", None),
        ("a-b", None),
        ("-3", None),
        ("5-3", None),
        ("0-99999999", None),
    ],
)
def test_lists_of_cores(text: str, known: set[int] | None) -> None:
    assert parse_cores(text) == (known and Cores(known))


def test_a_range_is_bounded_by_what_a_kernel_can_have() -> None:
    assert len(parse_cores("0-99999") or ()) == 8192
