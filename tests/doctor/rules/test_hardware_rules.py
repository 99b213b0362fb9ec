"""Rules about hardware on hand-made cases: each defect is found, usual states are not reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import Ecc, Pcie
from mgpu_doctor.case.log_case import signs_of
from mgpu_doctor.case.model import Case, Error, Outcome, State
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from mgpu_doctor.report import diagnosis_json, markdown, terminal
from mgpu_doctor.rules.catalogue import OWN
from tests.support.gpus import gpu, gpus
from tests.support.hardware import (
    CODES,
    IDLE,
    NARROW,
    SAMPLES,
    WIDE,
    changed,
    hardware,
    job,
    links,
    only,
)
from tests.support.rule_limits import equal_counts_as

LOST: dict[str, Any] = {
    **dict.fromkeys(("utilization", "memory_used", "power_watts", "temperature", "uuid")),
    "pids": (),
    "trouble": "GPU is lost",
}


def failed_by_exception(case: Case, number: int, message: str, **changes: Any) -> Case:
    """The job failed by this rank's exception, when its newest sample was taken."""
    ended = case.device_samples[-1].at
    error = Error("RuntimeError", message, "train.py", 9, "main", "", ended)
    facts = {"state": State.DEAD, "exit_code": 1, "ended": ended, "error": error, **changes}
    ranks = [replace(rank, **facts) if rank.rank == number else rank for rank in case.ranks]
    failed = replace(case.job, outcome=Outcome.FAILED, exit_code=1, ended=ended)
    return replace(case, ranks=tuple(ranks), job=failed)


def without_steps_for(case: Case, seconds: float) -> Case:
    """The ranks finished no step in the last seconds before the newest sample."""
    earlier = (replace(rank, clock_offset=rank.clock_offset - seconds) for rank in case.ranks)
    return replace(case, ranks=tuple(earlier))


# --- healthy --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "every",
    [
        {},
        IDLE,
        {"pcie": WIDE, "ecc": Ecc(0, 0, 9000, 3, 2, False, False), "nvlinks": links(4)},
        {**IDLE, "pcie": structs.replace(WIDE, generation=1)},
        {"clock_reasons": ("power_cap",), "sm_clock_mhz": 1700.0},
        {"nvlinks": links(0), "pcie": Pcie(), "ecc": Ecc()},
        {"trouble": "not supported: fan"},
    ],
    ids=["old recording", "idle", "new facts", "asleep", "own cap", "unknown", "something missing"],
)
@pytest.mark.parametrize("ranks", [1, 4])
def test_healthy_gpus_are_well(ranks: int, every: Mapping[str, Any]) -> None:
    shown = [gpu(index, **every) for index in range(ranks)]
    assert hardware(job(ranks, devices=shown)) == []


@pytest.mark.parametrize(
    "slip",
    [
        {"ecc": Ecc(uncorrected=3, pending=True, failed=True)},
        {"nvlinks": links(1)},
        {"pcie": NARROW},
        {"clock_reasons": ("hw_thermal",)},
        LOST,
    ],
    ids=["ecc", "nvlink", "pcie", "thermal", "lost"],
)
@pytest.mark.parametrize("place", [5, SAMPLES - 1], ids=["within", "newest"])
def test_one_sample_alone_says_nothing(slip: Mapping[str, Any], place: int) -> None:
    well = {"ecc": Ecc(uncorrected=0, pending=False), "nvlinks": links(4), "pcie": WIDE}
    case = job(devices=[gpu(index, **well) for index in range(4)])
    assert hardware(changed(case, 2, {place: slip})) == []


def test_every_rule_says_that_it_has_not_seen_a_gpu() -> None:
    assert all(
        "not yet seen on a GPU" in rule.unverified for rule in OWN if rule.family == "hardware"
    )


# --- gpu-lost -------------------------------------------------------------------------------


def lost_at_last(samples: int = 4, **job_: Any) -> Case:
    case = job(**job_)
    return changed(case, 2, {-place: LOST for place in range(1, samples + 1)})


def test_a_lost_gpu_is_known_by_its_index_and_stops_its_rank() -> None:
    finding = only(lost_at_last())
    assert (finding.code, finding.severity) == ("gpu-lost", Severity.CRITICAL)
    assert [(c.rank, c.device, c.pid) for c in finding.culprits] == [(2, "cuda:2", 1002)]
    assert finding.victims == (0, 1, 3)
    assert finding.evidence[0].value == 3.0


def test_a_lost_gpu_without_a_rank_is_a_defect() -> None:
    case = job(2, devices=gpus(4))
    finding = only(changed(case, 3, {-1: LOST, -2: LOST}))
    assert finding.severity is Severity.WARNING
    assert [(c.rank, c.host, c.device) for c in finding.culprits] == [(None, "node", "GPU 3")]


def test_a_gpu_that_is_not_listed_any_more_is_lost() -> None:
    case = job()
    *before, a, b, c = case.device_samples
    gone = [structs.replace(one, devices=one.devices[:3]) for one in (a, b, c)]
    one = only(replace(case, device_samples=(*before, *gone)))
    assert [culprit.rank for culprit in one.culprits] == [3]
    assert "no longer listed" in one.cause


def test_a_host_that_is_sampled_no_more_has_lost_no_gpu() -> None:
    case = job()
    for ranks in (case.ranks, ()):  # all on one host, or none joined yet
        there = [structs.replace(sample, host="node") for sample in case.device_samples]
        other = [structs.replace(one, uuid=f"GPU-of-b-{one.index}") for one in there[0].devices]
        first = [structs.replace(one, host="b", devices=tuple(other)) for one in there[:12]]
        several = replace(case, device_samples=(*first, *there), ranks=ranks)
        assert hardware(several) == []
        silent = (*other[:3], structs.replace(other[3], **LOST))
        lost = [structs.replace(one, devices=silent) for one in first[-4:]]
        finding = only(replace(several, device_samples=(*first[:-4], *lost, *there)))
        assert [(culprit.host, culprit.device) for culprit in finding.culprits] == [("b", "GPU 3")]


def test_the_end_of_a_rank_whose_gpu_was_lost_is_reported_once() -> None:
    case = failed_by_exception(lost_at_last(), 2, "CUDA error: unspecified launch failure")
    (finding,) = [found for found in diagnose(case).findings if found.severity is Severity.CRITICAL]
    assert finding.code == "gpu-lost"
    assert any("unspecified launch failure" in str(piece.value) for piece in finding.evidence)


def test_a_gpu_that_answers_again_is_reported_by_its_xid() -> None:
    finding = only(job(events=[(8.0, 1, 79)]))
    assert (finding.code, finding.severity) == ("gpu-lost", Severity.WARNING)
    assert "answers again" in finding.title
    assert finding.evidence[0].value == 79


# --- gpu-xid --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code", "severity", "whose"),
    [
        (13, "gpu-xid", Severity.INFO, "bug in the program"),
        (31, "gpu-xid", Severity.INFO, "bug in the program"),
        (43, "gpu-xid", Severity.INFO, "that process's own"),
        (45, "gpu-xid", Severity.INFO, "process was killed"),
        (48, "gpu-ecc", Severity.WARNING, "hardware's fault"),
        (63, "gpu-ecc", Severity.WARNING, "hardware's fault"),
        (64, "gpu-ecc", Severity.WARNING, "hardware's fault"),
        (74, "nvlink-down", Severity.WARNING, "Usually the hardware"),
        (79, "gpu-lost", Severity.WARNING, "Usually the hardware"),
        (94, "gpu-ecc", Severity.WARNING, "hardware's fault"),
        (95, "gpu-ecc", Severity.WARNING, "hardware's fault"),
        (119, "gpu-xid", Severity.WARNING, "driver's firmware"),
        (140, "gpu-xid", Severity.WARNING, "reports an error"),
    ],
)
def test_whose_fault_an_xid_usually_is(
    number: int, code: str, severity: Severity, whose: str
) -> None:
    finding = only(job(events=[(2.0, 1, number)]))
    assert (finding.code, finding.severity) == (code, severity)
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert whose in finding.cause
    assert "{" not in finding.cause + finding.fixes[0].how


def test_an_xid_says_who_reported_it() -> None:
    case = job(events=[(5.0, 2, 119)])
    last = case.device_samples[-1]
    logged = structs.replace(
        last, events=tuple(structs.replace(event, logged=True) for event in last.events)
    )
    read = replace(case, device_samples=(*case.device_samples[:-1], logged))
    assert [only(one).evidence[0].source for one in (case, read)] == ["NVML events", "kernel log"]


def test_an_xid_after_which_no_step_ends_stops_the_job() -> None:
    case = job(events=[(15.0, 1, 119)])
    assert only(case).severity is Severity.WARNING
    assert only(without_steps_for(case, 14.0)).severity is Severity.CRITICAL


@pytest.mark.parametrize("number", [13, 31])
def test_the_finding_of_an_end_carries_the_xid_of_a_program(number: int) -> None:
    message = "CUDA error: an illegal memory access was encountered"
    case = failed_by_exception(job(events=[(3.0, 2, number)]), 2, message)
    findings = [
        finding for finding in diagnose(case).findings if finding.code.startswith(("failed", "gpu"))
    ]
    (one,) = findings
    assert one.code == "failed-exception"
    assert f"XID {number}" in one.cause
    assert any(piece.unit == "XID" and piece.value == number for piece in one.evidence)


def test_a_broken_gpu_explains_the_end_of_its_rank() -> None:
    case = failed_by_exception(
        job(events=[(3.0, 2, 95)]), 2, "CUDA error: uncorrectable ECC error encountered"
    )
    grave = [
        finding for finding in diagnose(case).findings if finding.severity is Severity.CRITICAL
    ]
    assert [(one.code, one.culprits[0].rank) for one in grave] == [("gpu-ecc", 2)]
    assert any("uncorrectable ECC" in str(piece.value) for piece in grave[0].evidence)


@pytest.mark.parametrize(
    ("ago", "index"), [(500.0, 2), (3.0, 1)], ids=["long before", "another rank's GPU"]
)
def test_an_xid_of_another_time_or_gpu_ended_nobody(ago: float, index: int) -> None:
    case = failed_by_exception(job(events=[(ago, index, 119)]), 2, "something else")
    grave = [
        finding.code for finding in diagnose(case).findings if finding.severity is Severity.CRITICAL
    ]
    assert grave == ["failed-exception"]


# --- gpu-ecc --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ecc", "message", "fix"),
    [
        (Ecc(uncorrected=2), "2 errors that ECC could not correct", "reset-gpu"),
        (Ecc(uncorrected=0, pending=True), "pending until a reset", "reset-gpu"),
        (Ecc(failed=True, pending=True), "could not be replaced", "replace-gpu"),
    ],
    ids=["uncorrected", "pending", "failed"],
)
def test_memory_errors_name_the_rank(ecc: Ecc, message: str, fix: str) -> None:
    finding = only(job(of={3: {"ecc": ecc}}))
    assert (finding.code, finding.severity) == ("gpu-ecc", Severity.WARNING)
    assert [culprit.rank for culprit in finding.culprits] == [3]
    assert message in finding.title
    assert finding.fixes[0].id == fix


@pytest.mark.parametrize(("each", "reported"), [(1, False), (50, True)])
def test_corrected_errors_are_worth_knowing_at_most(each: int, *, reported: bool) -> None:
    at = {place: {"ecc": Ecc(corrected=7000 + each * place)} for place in range(SAMPLES)}
    findings = hardware(changed(job(), 1, at))
    assert [one.severity for one in findings] == ([Severity.INFO] if reported else [])


# --- gpu-throttled --------------------------------------------------------------------------


def test_heat_that_costs_nobody_a_step_is_mentioned_the_gpu() -> None:
    hot = {"clock_reasons": ("sw_thermal",), "sm_clock_mhz": 1400.0, "temperature": 89.0}
    finding = only(job(of={1: hot}))
    assert (finding.code, finding.severity) == ("gpu-throttled", Severity.WARNING)
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "1400 MHz instead of 1900" in finding.title
    assert finding.fixes[0].id == "cool-device"


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"clock_reasons": ("hw_power_brake",), "sm_clock_mhz": 900.0}, Severity.WARNING),
        ({"clock_reasons": ("hw_slowdown",), "sm_clock_mhz": None}, Severity.WARNING),
        ({"clock_reasons": ("sw_thermal",), "sm_clock_mhz": 1890.0}, Severity.INFO),
        (
            {
                "clock_reasons": ("power_cap",),
                "sm_clock_mhz": 1300.0,
                "power_limit_watts": 500.0,
            },
            Severity.INFO,
        ),
        ({"clock_reasons": ("power_cap",), "sm_clock_mhz": 1300.0}, None),
        ({"clock_reasons": ("power_cap",), "power_limit_watts": 500.0}, None),
        ({"clock_reasons": ("hw_thermal",), "utilization": 0.1, "sm_clock_mhz": 900.0}, None),
    ],
    ids=["brake", "slowdown", "free heat", "low cap", "usual cap", "cap costs nothing", "idle"],
)
def test_the_reason_and_the_clock_decide(
    changes: Mapping[str, Any], severity: Severity | None
) -> None:
    findings = hardware(job(of={2: changes}))
    assert [one.severity for one in findings] == ([] if severity is None else [severity])


def test_hostile_names_do_no_harm() -> None:
    odd = {"name": "[red]x\x1b[2J", "bus_id": "[bold]zz:::", "cores": "0-99999999", "trouble": "["}
    case = job(of={1: {**odd, "ecc": Ecc(uncorrected=1 << 60)}}, events=[(1.0, 77, 79)])
    assert {finding.code for finding in hardware(case)} <= CODES


@pytest.mark.parametrize("address", ["0000:2a:00", "0000:2A:00.0"])
def test_a_line_of_the_kernels_log_names_the_rank_by_the_gpus_address(address: str) -> None:
    line = f"NVRM: Xid (PCI:{address}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row"
    case = job(of={number: {"bus_id": f"0000:2{number + 8:x}:00.0"} for number in range(4)})
    finding = only(replace(case, signs=signs_of({"stderr": [line]})))
    assert (finding.code, finding.severity) == ("gpu-ecc", Severity.WARNING)
    assert [culprit.rank for culprit in finding.culprits] == [2]


def test_a_gpu_without_a_rank_can_be_shown() -> None:
    diagnosis = diagnose(job(2, devices=gpus(3, of={2: {"ecc": Ecc(pending=True)}})))
    (finding,) = [found for found in diagnosis.findings if found.code in CODES]
    assert [culprit.rank for culprit in finding.culprits] == [None]
    assert "GPU 2 of node" in finding.title
    shown = (
        terminal.render(diagnosis, width=200, colour=False),
        markdown.render(diagnosis, redact=False),
        diagnosis_json.render(diagnosis),
    )
    assert all("GPU 2 of node" in text for text in shown)


@pytest.mark.parametrize(("samples", "reported"), [(1, False), (2, True)])
def test_a_gpu_is_lost_from_the_second_sample_on(samples: int, *, reported: bool) -> None:
    case = lost_at_last(samples)
    assert [finding.code for finding in hardware(case)] == ["gpu-lost"] * reported


def test_as_many_corrected_errors_as_the_limit_are_reported() -> None:
    at = {place: {"ecc": Ecc(corrected=7000 + 50 * place)} for place in range(SAMPLES)}
    errors = 50 * (SAMPLES - 1)
    assert equal_counts_as(changed(job(), 1, at), "gpu-ecc", "corrected", errors) == "more"


def test_the_clock_and_the_share_of_samples_at_a_limit() -> None:
    half = {"clock_reasons": ("power_cap",), "sm_clock_mhz": 950.0, "power_limit_watts": 500.0}
    case = job(of={2: half})
    assert equal_counts_as(case, "gpu-throttled", "clock", 0.5) == "more"
    hot = {"clock_reasons": ("hw_thermal",)}
    some = changed(job(), 2, dict.fromkeys(range(6), hot))
    assert equal_counts_as(some, "gpu-throttled", "share", 6 / SAMPLES) == "more"


@pytest.mark.parametrize(("before", "code"), [(59.0, "gpu-lost"), (61.0, "failed-exception")])
def test_a_rank_that_failed_within_a_minute_before_was_ended_by_the_loss(
    before: float, code: str
) -> None:
    case = lost_at_last()
    message = "CUDA error: unspecified launch failure"
    since = case.device_samples[-4].at
    case = failed_by_exception(case, 2, message, ended=since - before)
    error = next(rank.error for rank in case.ranks if rank.rank == 2)
    assert error is not None
    ranks = [
        replace(rank, error=replace(error, at=since - before)) if rank.rank == 2 else rank
        for rank in case.ranks
    ]
    grave = [
        finding.code
        for finding in diagnose(replace(case, ranks=tuple(ranks))).findings
        if finding.severity is Severity.CRITICAL
    ]
    assert grave == [code]


def ended_at(case: Case, at: float) -> list[str]:
    """What stops the job whose rank 2 failed then."""
    failed = failed_by_exception(case, 2, "something else", ended=at)
    ranks = tuple(
        rank if rank.error is None else replace(rank, error=replace(rank.error, at=at))
        for rank in failed.ranks
    )
    findings = diagnose(replace(failed, ranks=ranks)).findings
    return [one.code for one in findings if one.severity is Severity.CRITICAL]


@pytest.mark.parametrize(
    ("seconds", "code"),
    [
        (59.0, "gpu-xid"),
        (61.0, "failed-exception"),
        (-9.0, "gpu-xid"),
        (-11.0, "failed-exception"),
    ],
)
def test_an_xid_ended_a_rank_from_a_minute_before_to_ten_seconds_after_it(
    seconds: float, code: str
) -> None:
    case = job(events=[(0.0, 2, 119)])
    assert ended_at(case, case.device_samples[-1].at + seconds) == [code]


@pytest.mark.parametrize(
    ("ago", "stands", "severity"),
    [
        (15.0, 6.0, Severity.CRITICAL),
        (15.0, 4.0, Severity.WARNING),
        (11.0, 14.0, Severity.CRITICAL),
        (9.0, 14.0, Severity.WARNING),
    ],
)
def test_an_xid_stops_a_rank_that_ends_no_step_in_ten_seconds(
    ago: float, stands: float, severity: Severity
) -> None:
    assert only(without_steps_for(job(events=[(ago, 1, 119)]), stands)).severity is severity


def test_two_samples_tell_how_often_a_gpu_is_listed() -> None:
    case = job()
    *_, first, second, third, fourth = case.device_samples
    gone = [structs.replace(one, devices=one.devices[:3]) for one in (third, fourth)]
    seen = replace(case, device_samples=(first, second, *gone))
    assert [culprit.rank for culprit in only(seen).culprits] == [3]
    once = replace(case, device_samples=(second, *gone))
    assert hardware(once) == []
