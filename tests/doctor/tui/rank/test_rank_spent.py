"""How a rank spends its step, beside the other ranks: the same numbers as in the finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, PhaseExcess
from mgpu_doctor.report import text
from mgpu_doctor.tui.screens.rank_details import peers, rank_page_lines
from mgpu_doctor.tui.view import RankKey, View
from tests.support.frames import frame
from tests.support.synthetic import Fault, Synthetic, synthetic_case


def slow_input_diagnosis(ranks: int, start: int = 0) -> Diagnosis:
    fault = Fault(1, "input", milliseconds=40, start=start)
    return diagnose(synthetic_case(Synthetic(ranks=ranks, steps=160, faults=[fault])))


def page(diagnosis: Diagnosis, rank: int) -> list[str]:
    who = RankKey.of(next(one for one in diagnosis.ranks if one.rank == rank))
    return [line.plain for line in rank_page_lines(frame(diagnosis), 100, View(rank=who))]


def row(shown: Sequence[str], phase: str) -> str:
    return next(line for line in shown if line[2:].startswith(phase))


def excess_of_finding(diagnosis: Diagnosis) -> str:
    """The time beyond the others, as the finding has it."""
    (finding,) = (finding for finding in diagnosis.findings if finding.code == "straggler-input")
    (evidence,) = (item for item in finding.evidence if item.excess == PhaseExcess(1, "input"))
    return text.quantity(evidence.value, evidence.unit)


def test_of_two_ranks_the_page_and_the_finding_tell_one_number() -> None:
    diagnosis = slow_input_diagnosis(2)
    shown = page(diagnosis, 1)
    assert f"+{excess_of_finding(diagnosis)}" in row(shown, "input")
    assert any("median of 1 other rank" in line for line in shown)
    assert f"-{excess_of_finding(diagnosis)}" in row(page(diagnosis, 0), "input")


def test_what_began_later_is_reported_since_then() -> None:
    diagnosis = slow_input_diagnosis(4, start=100)
    shown = page(diagnosis, 1)
    assert f"+{excess_of_finding(diagnosis)}" in row(shown, "input")
    assert any(line.endswith("excess from step 100 on: input") for line in shown)


def test_stages_are_compared_with_their_equals_and_servers_with_nobody() -> None:
    diagnosis = replace(slow_input_diagnosis(4), stages=((0, 1), (2, 3)))
    assert [peer.rank for peer in peers(diagnosis, diagnosis.ranks[0])] == [1]
    alone = replace(slow_input_diagnosis(4), stages=((0,), (1,), (2,), (3,)))
    assert any("no other rank does the same work" in line for line in page(alone, 0))
    assert "excess" not in "".join(page(alone, 1)[-12:]).partition("phase")[2]
    served = replace(slow_input_diagnosis(4), servers=frozenset({0}))
    assert peers(served, served.ranks[0]) == []
    assert [peer.rank for peer in peers(served, served.ranks[1])] == [2, 3]
