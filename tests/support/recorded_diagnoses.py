"""Compares diagnoses without their prose with golden files: codes, ranks, fixes and numbers.

`MGPU_DOCTOR_TEST_RECORD=1` in the environment rewrites the golden files of the test files that run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Diagnosis, Finding
from mgpu_doctor.rules.rule import Rule
from tests.support.screens import RECORD

GOLDEN = Path(__file__).parents[1] / "recorded" / "diagnoses"
NUMBER = re.compile(r"(?<![\w./-])\d+(?:\.\d+)?(?![\w/-])")
"""Matches a number in a sentence, not in a name or a path."""
MOST_DIAGNOSES = 100
"""Diagnoses of one test that are recorded; later ones are not."""


def examine(rules: Iterable[Rule], measures: Measures) -> list[Finding]:
    """The findings of the rules by their own detectors, without folding; recorded like a
    diagnosis."""
    findings = [finding for rule in rules for finding in rule.examine(measures, rule.defaults)]
    keep(findings)
    return findings


def keep(findings: Sequence[Finding]) -> None:
    """Does nothing. In tests/doctor/rules a fixture replaces it by a function that records."""


def rounded(value: Any) -> str:
    """A number with four digits. A text becomes `text`, because it may hold paths."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:.4g}"
    return str(value)


def lines_of(finding: Finding) -> Iterator[str]:
    """The finding's code, ranks and cost, the numbers in its text, its evidence and its fixes."""
    ranks = [culprit.rank for culprit in finding.culprits]
    cost = finding.cost
    costs = [rounded(x) for x in (cost.step_fraction, cost.seconds_per_step, cost.bytes)]
    yield (
        f"{finding.code} {finding.severity.value} confidence {rounded(finding.confidence)} "
        f"culprits {ranks} victims {list(finding.victims)} since {finding.since_step} "
        f"cost {' '.join(costs)}"
    )
    if numbers := NUMBER.findall(f"{finding.title}. {finding.cause}"):
        yield f"  says {' '.join(numbers)}"
    for piece in finding.evidence:
        yield f"  {rounded(piece.value)} against {rounded(piece.baseline)} {piece.unit}"
    for fix in finding.fixes:
        gain = fix.predicted
        gains = f" {rounded(gain.step_time_ratio)} {rounded(gain.memory_bytes)}" if gain else ""
        yield f"  [{fix.id}]{gains}"


def numbers_of(diagnosis: Diagnosis) -> Iterator[str]:
    """The numbers of the whole job, then those of each finding."""
    whole = (
        diagnosis.coverage,
        diagnosis.step_seconds,
        diagnosis.waste_fraction,
        diagnosis.load_balance,
        diagnosis.communication_efficiency,
    )
    yield f"= {' '.join(rounded(value) for value in whole)}"
    if diagnosis.unexamined:
        yield f"unexamined: {', '.join(gap.probe for gap in diagnosis.unexamined)}"
    for finding in diagnosis.findings:
        yield from lines_of(finding)


def lines_of_all(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of findings that a test got from single rules."""
    yield "= rules"
    for finding in findings:
        yield from lines_of(finding)


class Golden:
    """The golden file of one test file: a section per test, in the order of their names."""

    def __init__(self, name: str) -> None:
        self._file = GOLDEN / f"{name}.txt"
        text = self._file.read_text(encoding="utf-8") if self._file.is_file() else ""
        parts = (part.partition("\n") for part in text.split("\n\n") if part)
        self._recorded = {head: body.rstrip("\n") for head, _, body in parts}
        self._new: dict[str, str] = {}

    def check(self, test: str, results: Sequence[Diagnosis | Sequence[Finding]]) -> None:
        """Fails unless the numbers are those of the golden file."""
        lines = [
            line
            for result in results[:MOST_DIAGNOSES]
            for line in (
                numbers_of(result) if isinstance(result, Diagnosis) else lines_of_all(result)
            )
        ]
        self._new[f"[{test}]"] = text = "\n".join(lines)
        if not os.environ.get(RECORD):
            assert text.splitlines() == self._recorded.get(f"[{test}]", "").splitlines()

    def write(self) -> None:
        """Writes the file anew while recording."""
        sections = {head: body for head, body in sorted(self._new.items()) if body}
        if os.environ.get(RECORD) and sections:
            GOLDEN.mkdir(parents=True, exist_ok=True)
            text = "\n\n".join(f"{head}\n{body}" for head, body in sections.items())
            self._file.write_text(f"{text}\n", encoding="utf-8")
