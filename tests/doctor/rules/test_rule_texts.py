"""The texts of rules, held against one golden file per rule: tests/recorded/rules/CODE.txt.

A file holds what `mgpu-doctor explain CODE` prints, and the findings of that code in the recorded
logs of failed jobs. Other tests look at codes, ranks and numbers. `make texts` writes the files
anew: read the difference before committing it.
"""

from __future__ import annotations

import functools
import os
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from mgpu_doctor.report.rule_reference import explain_rule
from mgpu_doctor.report.text import quantity
from mgpu_doctor.rules.catalogue import OWN
from mgpu_doctor.rules.rule import Rule
from tests.support.loops import over
from tests.support.screens import RECORD

RECORDED = Path(__file__).parents[2] / "recorded"
FAILED = RECORDED / "console" / "failed"
GOLDEN = RECORDED / "rules"
WIDTH = 96


@functools.cache
def examples() -> Mapping[str, list[str]]:
    """Findings in the logs of failed jobs, by code."""
    texts: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FAILED.glob("*.log")):
        for finding in diagnose(load_logs([str(path)])).findings:
            lines = [f"In {path.name}", *words_of(finding)]
            texts[finding.code].append("\n".join(lines))
    return texts


def words_of(finding: Finding) -> Iterator[str]:
    """Its texts, without the path of this checkout, whose length would change where lines end."""
    yield from wrapped(finding.title)
    yield from wrapped(finding.cause)
    for piece in finding.evidence:
        where = f" ({piece.where})" if piece.where else ""
        yield from wrapped(f"- {piece.measure}: {quantity(piece.value, piece.unit)}{where}")
    for fix in finding.fixes:
        yield from wrapped(f"[{fix.id}] {fix.summary}")
        yield from wrapped(fix.how)


def wrapped(text: str) -> list[str]:
    return [
        part
        for line in text.replace(str(FAILED), "…").splitlines()
        for part in textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ")
    ]


@over("rule", OWN, lambda rule: rule.code)
def test_its_texts_are_those_of_its_golden_file(rule: Rule) -> None:
    file = GOLDEN / f"{rule.code}.txt"
    text = "\n\n".join([explain_rule(rule), *examples().get(rule.code, ())]) + "\n"
    if os.environ.get(RECORD):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.is_file(), f"there is no {file.name}"
    assert text == file.read_text(encoding="utf-8")


def test_every_golden_file_has_its_rule() -> None:
    codes = {rule.code for rule in OWN}
    others = [path for path in GOLDEN.glob("*.txt") if path.stem not in codes]
    if os.environ.get(RECORD):
        for path in others:
            path.unlink()
    else:
        assert others == []
