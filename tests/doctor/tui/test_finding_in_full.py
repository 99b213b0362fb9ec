"""A finding in full: labels in a column, numbers first, at any width."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgpu_doctor.findings import Evidence, Finding
from mgpu_doctor.tui.panels.finding_list import FindingDetails
from tests.support import diagnoses
from tests.support.frames import STRAGGLER

SOURCE = "114 steps joined by collective sequence"


def drawn(finding: Finding, width: int) -> list[str]:
    assert STRAGGLER.diagnosis is not None
    lines = FindingDetails(finding, STRAGGLER.diagnosis.step_seconds).lines(width)
    assert max(line.cell_len for line in lines) <= width
    return [line.plain.rstrip() for line in lines]


def finding(*evidence: Evidence) -> Finding:
    assert STRAGGLER.diagnosis is not None
    return replace(STRAGGLER.diagnosis.findings[0], evidence=evidence)


def test_numbers_stand_in_a_column_and_what_all_share_is_reported_once() -> None:
    own = Evidence("own work a step", 0.119, "s", 0.0827, SOURCE, "rank 2")
    share = Evidence("steps in which it was slower", 0.93, "fraction", 0.5, SOURCE, "rank 3")
    lines = drawn(finding(own, share), 60)
    place = lines.index("evidence  119 ms vs 82.7 ms  own work a step")
    assert lines[place + 1 : place + 3] == [
        "          93 % vs 50 %       steps in which it was slower,",
        "                             rank 3",
    ]
    assert lines[place + 3] == f"          ({SOURCE})"


def test_words_of_others_get_lines_of_their_own() -> None:
    said = Evidence("console", "torch.OutOfMemoryError: [red]CUDA[/red] out of memory", "")
    lines = drawn(finding(said), 80)
    place = lines.index("evidence  console:")
    assert lines[place + 1] == f"            {said.value}"


@pytest.mark.parametrize("width", [30, 40, 79, 110, 300])
def test_every_finding_fits_any_width(width: int) -> None:
    for diagnosis in diagnoses.ALL.values():
        for finding in diagnosis.findings:
            lines = drawn(finding, width)
            labelled = [line for line in lines if line.startswith("why")]
            assert len(labelled) == bool(finding.cause)


def test_a_gain_that_fixes_share_is_reported_once() -> None:
    (fix, *_) = finding().fixes
    lines = drawn(replace(finding(), fixes=(fix, replace(fix, summary="another way"))), 110)
    assert "or        another way" in lines
    assert sum(line.startswith("gain") for line in lines) == 1
