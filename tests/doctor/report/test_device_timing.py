"""Every view names the clock of the phases, and which GPUs are busy waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.device_times import RunAhead
from mgpu_doctor.case.model import Case, DevicePosition, Now, State
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import BusyWaiting, Diagnosis
from mgpu_doctor.report import diagnosis_json, html, markdown, terminal
from mgpu_doctor.report.device_timing import format_run_ahead, name_clocks
from mgpu_doctor.rules.gpu.busy_waiting import find_busy_waiting
from mgpu_doctor.rules.settings import Settings
from mgpu_doctor.tui.once import render
from mgpu_doctor.tui.screens.rank_details import rank_page_lines
from mgpu_doctor.tui.view import RankKey, View
from tests.support.frames import frame
from tests.support.gpus import busy_waiting, gpus, on_gpus
from tests.support.metadata import with_metadata
from tests.support.synthetic import Synthetic, synthetic_case

WAIT = 40 / 68.8
"""Share of a step that ranks 0, 1 and 3 wait for rank 2."""


def waiting(case: Case, **settings: Any) -> list[BusyWaiting | None]:
    return [rank.busy_waiting for rank in diagnose(case, Settings(**settings)).ranks]


@pytest.mark.parametrize("utilization", [1.0, 0.9, 0.7])
def test_of_a_busy_gpu_the_time_beyond_its_idle_time_was_waiting(utilization: float) -> None:
    found = waiting(busy_waiting(utilization))
    assert found[2] is None
    for number in (0, 1, 3):
        known = found[number]
        assert known is not None
        assert (known.gpu, known.waits_for) == (number, 2)
        assert known.utilization == pytest.approx(utilization)
        assert known.waiting == pytest.approx(1 - (1 - WAIT) / utilization, abs=0.01)


def test_nothing_is_reported_of_gpus_that_idle_while_their_ranks_wait() -> None:
    assert waiting(busy_waiting(1 - WAIT)) == [None] * 4


def test_nothing_is_reported_of_gpus_that_others_may_keep_busy() -> None:
    assert waiting(busy_waiting(pids=(1000, 1001, 1002, 1003, 7))) == [None] * 4


def test_the_hosts_clock_knows_of_no_waiting() -> None:
    case = busy_waiting()
    ranks = [with_metadata(replace(rank, device_times=None), clock="host") for rank in case.ranks]
    assert waiting(replace(case, ranks=tuple(ranks))) == [None] * 4


def test_only_a_rank_that_a_finding_blames_is_waited_for() -> None:
    found = waiting(busy_waiting(), ignore=frozenset({"straggler-compute"}))
    assert [known.waits_for for known in found if known is not None] == [None] * 3


@pytest.mark.parametrize(("seconds", "blocked"), [(42.0, True), (4.0, False)])
def test_in_a_blocked_job_all_that_a_busy_gpu_does_is_waiting(
    seconds: float, blocked: bool
) -> None:
    case = on_gpus(Synthetic(), gpus(4, utilization=1.0))
    died = max(float(rank.steps["end_ns"][-1]) * 1e-9 for rank in case.ranks)
    now = Now("wait", died, 119, "all_reduce train.py:22", None)
    ranks = [replace(rank, state=State.WAITING, now=now) for rank in case.ranks]
    ranks[2] = replace(case.ranks[2], state=State.DEAD, signal=9, ended=died)
    later = [
        structs.replace(case.device_samples[-1], at=died + at) for at in range(1, 1 + int(seconds))
    ]
    samples = (*case.device_samples, *later)
    hung = replace(case, ranks=tuple(ranks), observed=died + seconds, device_samples=samples)
    known = BusyWaiting(0, 1.0, 1.0, 2)
    assert waiting(hung)[0] == (known if blocked else None)
    assert waiting(hung)[2] is None
    if blocked:
        for name, text in views(diagnose(hung)).items():
            assert "100 % busy, but all of it waiting for rank 2" in text, name
        hang = diagnose(hung).findings[0]
        reads_loss = DevicePosition(120, 119, 4, "wait", False, since=died, seen=hung.observed)
        ranks[0] = replace(ranks[0], now=replace(now, phase="forward"), device_position=reads_loss)
        measures = measure(replace(hung, ranks=tuple(ranks)))
        assert find_busy_waiting(measures, (), hang)[0] == known


def test_json_names_the_clock_and_holds_the_run_ahead() -> None:
    first, _, slow, _ = diagnosis_json.document(diagnose(busy_waiting()))["ranks"]
    assert (first["clock"], first["bound_by"]) == ("device", "device")
    assert (slow["clock"], slow["bound_by"], slow["busy_waiting"]) == ("device", "host", None)
    assert first["run_ahead_seconds"] == pytest.approx(0.3)
    assert slow["run_ahead_seconds_most"] == pytest.approx(0.001)
    assert first["busy_waiting"]["waits_for"] == 2
    (cpu,) = diagnosis_json.document(diagnose(synthetic_case(Synthetic(ranks=1))))["ranks"]
    assert (cpu["clock"], cpu["run_ahead_seconds"], cpu["bound_by"]) == ("cpu", None, None)


def views(diagnosis: Diagnosis) -> dict[str, str]:
    shown = frame(diagnosis)
    page = rank_page_lines(shown, 120, View(rank=RankKey.of(diagnosis.ranks[0])))
    return {
        "terminal": " ".join(terminal.render(diagnosis, width=120, colour=False).split()),
        "markdown": markdown.render(diagnosis),
        "html": html.render(diagnosis),
        "top": render(shown, width=120, colour=False),
        "rank page": "\n".join(line.plain for line in page),
    }


def test_every_view_says_who_is_waited_for_and_how_far_hosts_are_ahead() -> None:
    on_gpus = views(diagnose(busy_waiting()))
    on_cpus = views(diagnose(synthetic_case(Synthetic())))
    for name, text in on_gpus.items():
        assert "58 % of it waiting for rank 2" in text, name
        assert "310 ms" in text, name
    for name, text in on_cpus.items():
        assert "waiting for" not in text, name
        assert "ahead" not in text, name
    for name in ("terminal", "markdown", "html"):
        assert "Rank 2 is host-bound" in on_gpus[name], name
        assert "timed by the GPUs' own clocks" in on_gpus[name].replace("&#x27;", "'"), name


def test_ranks_of_different_clocks_are_distinguished() -> None:
    ranks = diagnose(busy_waiting()).ranks
    mixed = [replace(ranks[0], clock=PhaseClock.HOST), *ranks[1:]]
    assert name_clocks(mixed).endswith("by the GPUs' own clocks on ranks 1-3")
    assert name_clocks([replace(rank, clock=PhaseClock.CPU) for rank in ranks]) == ""


@pytest.mark.parametrize(
    ("lead", "shown"),
    [
        (None, "?"),
        (RunAhead(0.020, 0.021), "21 ms"),
        (RunAhead(0.020, None), "> 20 ms"),
        (RunAhead(0.020, 0.080), "> 20 ms"),
        (RunAhead(0.0, 0.002), "< 2 ms"),
        (RunAhead(0.0, None), "?"),
    ],
)
def test_a_run_ahead_is_shown_as_far_as_it_is_known(lead: RunAhead | None, shown: str) -> None:
    assert format_run_ahead(lead) == shown
