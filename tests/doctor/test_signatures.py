"""Signatures: each real text is recognised by its own alone, healthy logs are not."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from mgpu_doctor.analysis.postmortem.log_verdict import BETWEEN
from mgpu_doctor.rules.catalogue import OWN
from mgpu_doctor.rules.failures.log_codes import GROUP
from mgpu_doctor.signatures.signature import Role, Signature
from tests.support.all_signatures import ALL_SIGNATURES, CONSOLE, ids_of
from tests.support.loops import over

HEALTHY = CONSOLE / "healthy"
CODES = frozenset(rule.code for rule in OWN)

every_signature = over("signature", ALL_SIGNATURES, lambda signature: signature.id)


def test_there_are_enough_and_every_id_is_unique() -> None:
    assert len(ALL_SIGNATURES) >= 400
    assert [
        name
        for name, count in Counter(signature.id for signature in ALL_SIGNATURES).items()
        if count > 1
    ] == []


@every_signature
def test_its_example_is_recognised_by_itself_alone(signature: Signature) -> None:
    assert ids_of(signature.example) == [signature.id]


@every_signature
def test_it_is_declared_as_the_house_does(signature: Signature) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", signature.id)
    assert signature.code in CODES
    guarded = (signature.weight <= 0.6 and "^" in signature.pattern) or signature.least >= 10
    assert len(signature.needle) >= 8 or guarded
    assert signature.severity in ("critical", "warning", "info")
    assert 0 < signature.weight < 1
    assert signature.role is Role.CAUSE or signature.weight <= 0.9
    assert re.match(r"(?:made|source|recalled): \S", signature.origin)
    assert "\n" not in signature.example


@every_signature
def test_its_words_can_be_reported_with_its_values(signature: Signature) -> None:
    match = re.search(signature.pattern, signature.example)
    assert match is not None
    values = match.groupdict()
    for text in (signature.meaning, signature.fix):
        assert [name for name in GROUP.findall(text) if values[name] is None] == []
        filled = GROUP.sub(lambda group: values[group[1]] or "", text)
        assert filled == filled.strip()
        assert "{{" not in filled
        assert filled.endswith((".", ")")) or text.endswith("}")
        assert len(filled) <= 700


@every_signature
def test_who_tells_of_a_disagreement_is_not_blamed_for_it(signature: Signature) -> None:
    groups = set(re.compile(signature.pattern).groupindex)
    names_two = {"rank", "other"} <= groups or {"first", "second", "version"} <= groups
    assert signature.mutual or signature.code in BETWEEN or not names_two


def healthy_lines() -> list[str]:
    return [
        line
        for path in sorted(HEALTHY.glob("*.log"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def test_healthy_logs_say_nothing() -> None:
    names = {path.stem.split("-")[0] for path in HEALTHY.glob("*.log")}
    assert {"tensorflow", "lightning", "accelerate", "slurm", "kernel", "horovod"} <= names
    lines = healthy_lines()
    assert len(lines) > 200
    alone = {
        signature.id
        for signature in ALL_SIGNATURES
        if signature.least == 1 and not signature.needs_failure and signature.severity != "info"
    }
    assert {line: hits for line in lines if (hits := alone.intersection(ids_of(line)))} == {}


def hostile(signature: Signature) -> list[str]:
    """Long lines on which a careless pattern would try its parts in every way they fit."""
    words = re.findall(r"[A-Za-z]{3,}|\d+|[^\w\s]", signature.example)
    stem = signature.example[: max(1, len(signature.example) - 1)]
    return [
        (stem * 200)[:4096],
        (signature.needle * 500)[:4096],
        stem + "9" * 4000,
        stem + " a" * 2000,
        "".join(f"{word} " * 60 for word in words)[:4096],
    ]


@every_signature
@pytest.mark.timeout(60)  # a pattern that goes through its choices would take years
def test_no_line_can_keep_its_pattern_busy(signature: Signature) -> None:
    for line in hostile(signature):
        re.search(signature.pattern, line)
