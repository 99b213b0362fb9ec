"""Rules about PCIe and NVLink on cases made by hand."""

from __future__ import annotations

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import NvLink
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Severity
from tests.support.gpus import gpu
from tests.support.hardware import (
    NARROW,
    SAMPLES,
    WIDE,
    accused,
    changed,
    hardware,
    job,
    links,
    only,
)
from tests.support.rule_limits import equal_counts_as

# --- pcie-degraded --------------------------------------------------------------------------


def test_a_narrow_link_under_load() -> None:
    case = job(devices=[gpu(i, pcie=NARROW if i == 1 else WIDE) for i in range(4)])
    finding = only(case)
    assert (finding.code, finding.severity) == ("pcie-degraded", Severity.WARNING)
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.evidence[0].value == pytest.approx(1 / 16)


def test_a_machine_whose_slots_have_no_more_lanes() -> None:
    half = structs.replace(WIDE, width=8)
    findings = hardware(job(devices=[gpu(index, pcie=half) for index in range(4)]))
    assert {one.severity for one in findings} == {Severity.INFO}


def test_a_link_that_is_slow_now_and_then_only_wakes() -> None:
    asleep = {
        place: {"pcie": structs.replace(WIDE, generation=1)} for place in range(0, SAMPLES, 2)
    }
    case = job(devices=[gpu(index, pcie=WIDE) for index in range(4)])
    assert hardware(changed(case, 0, asleep)) == []


@pytest.mark.parametrize(("each", "reported"), [(0.1, False), (5, True)])
def test_replays_count_by_their_rate(each: float, *, reported: bool) -> None:
    at = {
        place: {"pcie": structs.replace(WIDE, replays=40 + int(each * place))}
        for place in range(SAMPLES)
    }
    case = job(devices=[gpu(index, pcie=WIDE) for index in range(4)], every=2.0)
    assert accused(changed(case, 3, at)) == ({("pcie-degraded", 3)} if reported else set())


# --- nvlink-down ----------------------------------------------------------------------------


def test_links_that_are_down_while_peers_are_up() -> None:
    case = job(devices=[gpu(i, nvlinks=links(3 if i == 2 else 4)) for i in range(4)])
    finding = only(case)
    assert (finding.code, finding.severity) == ("nvlink-down", Severity.WARNING)
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert (finding.evidence[0].value, finding.evidence[0].baseline) == (3, 4)
    assert finding.evidence[1].value == "3"


def test_links_that_went_down_while_watched() -> None:
    case = job(1, devices=[gpu(0, nvlinks=links(4))])
    down = {-1: {"nvlinks": links(2)}, -2: {"nvlinks": links(2)}}
    assert accused(changed(case, 0, down)) == {("nvlink-down", 0)}


def test_bridges_between_some_pairs_are_no_defect() -> None:
    case = job(devices=[gpu(i, nvlinks=links(4 if i < 3 else 0)) for i in range(4)])
    assert hardware(case) == []


@pytest.mark.parametrize(
    ("kind", "each", "reported"),
    [
        ("replay", 1, True),
        ("recovery", 1, True),
        ("crc_flit", 1, False),
        ("crc_flit", 500, True),
    ],
)
def test_errors_of_a_link(kind: str, each: int, *, reported: bool) -> None:
    def counted(place: int) -> tuple[NvLink, ...]:
        return (structs.replace(links(1)[0], errors=((kind, 900 + each * place),)), *links(4)[1:])

    case = job(devices=[gpu(index, nvlinks=links(4)) for index in range(4)])
    found = changed(case, 0, {place: {"nvlinks": counted(place)} for place in range(SAMPLES)})
    assert accused(found) == ({("nvlink-down", 0)} if reported else set())


def test_what_equals_a_limit_of_a_link_counts() -> None:
    def counted(kind: str, each: int, every: float = 1.0) -> Case:
        at = {
            place: {
                "nvlinks": (
                    structs.replace(links(1)[0], errors=((kind, each * place),)),
                    *links(4)[1:],
                ),
                "pcie": structs.replace(WIDE, replays=each * place),
            }
            for place in range(SAMPLES)
        }
        case = job(devices=[gpu(i, nvlinks=links(4), pcie=WIDE) for i in range(4)], every=every)
        return changed(case, 0, at)

    slow = job(devices=[gpu(i, pcie=NARROW if i == 1 else WIDE) for i in range(4)])
    assert equal_counts_as(slow, "pcie-degraded", "share", 1.0) == "more"
    errors = counted("replay", 1)
    assert equal_counts_as(errors, "nvlink-down", "errors", SAMPLES - 1) == "more"
    assert equal_counts_as(counted("crc_flit", 512), "nvlink-down", "checksums", 512) == "more"
    replays = counted("replay", 64, every=2.0)
    (found,) = [finding for finding in hardware(replays) if finding.code == "pcie-degraded"]
    rate = found.evidence[0].value
    assert isinstance(rate, float)
    assert rate == pytest.approx(64 * 30)
    assert equal_counts_as(replays, "pcie-degraded", "replays", rate) == "less"
    assert equal_counts_as(replays, "pcie-degraded", "seconds", 2.0 * (SAMPLES - 1)) == "more"


@pytest.mark.parametrize(("places", "reported"), [((10,), False), ((10, 11), True)])
def test_a_link_that_was_up_in_one_sample_alone_is_not_down_since(
    places: tuple[int, ...], reported: bool
) -> None:
    case = job(1, devices=[gpu(0, nvlinks=links(3))])
    case = changed(case, 0, {place: {"nvlinks": links(4)} for place in places})
    assert accused(case) == ({("nvlink-down", 0)} if reported else set())
