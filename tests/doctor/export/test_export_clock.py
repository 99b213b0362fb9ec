"""Exports name the clock of a step's phases, and take the device's where it timed the step."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import FORWARD, PHASES, WAIT

from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.export import step_table, timeline
from mgpu_doctor.recording.box import DEVICE_DTYPE
from tests.support.metadata import with_metadata
from tests.support.synthetic import Synthetic, synthetic_case

STEPS, TIMED = 20, (4, 5, 12)
"""Steps whose phases the device timed: 70 ms forward, 30 ms of waiting."""


def case_on_gpus() -> Case:
    """Rank 0 is timed on its device, rank 1 by the host's clock alone, rank 2 is on the CPU."""
    case = synthetic_case(Synthetic(ranks=3, steps=STEPS))
    times = np.zeros(len(TIMED), DEVICE_DTYPE)
    times["step_seq"] = [case.ranks[0].steps["seq"][step] for step in TIMED]
    times["wall_ns"] = 100_000_000
    times["phases"][:, FORWARD], times["phases"][:, WAIT] = 0.07, 0.03
    times["least_lead"], times["most_lead"] = 0.25, np.nan
    timed, queued, on_cpu = case.ranks
    timed = with_metadata(replace(timed, device="cuda:0", device_times=times), clock="device")
    queued = with_metadata(replace(queued, device="cuda:1"), clock="host")
    return replace(case, ranks=(timed, queued, on_cpu))


def table(case: Case) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(step_table.lines(case)))))


def test_csv_holds_the_devices_phases_of_timed_steps() -> None:
    case = case_on_gpus()
    rows = table(case)
    for row in rows:
        rank, step = int(row["rank"]), int(row["step"])
        host = case.ranks[rank].steps["phases"][step]
        if rank == 0 and step in TIMED:
            assert (row["clock"], float(row["run_ahead_seconds"])) == ("device", 0.25)
            assert float(row["forward_seconds"]) == pytest.approx(0.07)
            assert float(row["wait_seconds"]) == pytest.approx(0.03)
        else:
            assert (row["clock"], row["run_ahead_seconds"]) == (["host", "host", "cpu"][rank], "")
            assert float(row["forward_seconds"]) == pytest.approx(host[FORWARD])


def test_parquet_and_csv_agree(tmp_path: Any, optional_formats: ModuleType) -> None:
    import pyarrow.parquet as pq  # takes as long to load as all tests here

    case = case_on_gpus()
    optional_formats.write_parquet(tmp_path / "steps.parquet", case)
    for row, line in zip(
        pq.read_table(tmp_path / "steps.parquet").to_pylist(), table(case), strict=True
    ):
        assert row["clock"] == line["clock"]
        for name in ("run_ahead_seconds", *(f"{phase}_seconds" for phase in PHASES)):
            assert row[name] == (pytest.approx(float(line[name])) if line[name] else None)


def test_the_timeline_draws_one_clock_per_rank_and_names_it() -> None:
    events = json.loads("".join(timeline.lines(diagnose(case_on_gpus()))))["traceEvents"]
    tracks = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event.get("tid") == timeline.SHARES
    }
    assert tracks == {
        0: timeline.ON_DEVICE,
        1: timeline.ON_HOST,
        2: timeline.TRACKS[timeline.SHARES],
    }
    drawn: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    for event in events:
        if event.get("tid") == timeline.SHARES and event["ph"] == "X":
            drawn[event["pid"]].append(event)
    assert [event["name"] for event in drawn[0]] == ["forward", "wait"] * len(TIMED)
    assert [event["dur"] for event in drawn[0]] == pytest.approx([70e3, 30e3] * len(TIMED))
    for rank in (1, 2):
        assert sum(event["name"] == "forward" for event in drawn[rank]) == STEPS
    for slices in drawn.values():
        ends = [event["ts"] + event["dur"] for event in slices]
        begins = [event["ts"] for event in slices]
        assert all(end <= begin + 1 for end, begin in zip(ends[:-1], begins[1:], strict=True))
    leads = [event["args"] for event in events if event["name"].startswith("step ")]
    assert sum("host ahead of the device by seconds" in args for args in leads) == len(TIMED)
