"""Declarations of rules: detectors, needed measures, limits."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

from mgpu_doctor import rules
from mgpu_doctor.analysis.measures import Measures, Need
from mgpu_doctor.findings import Finding, Fix, Severity
from mgpu_doctor.rules.catalogue import OWN
from mgpu_doctor.rules.rule import (
    Addition,
    Detector,
    Examine,
    Limit,
    Limits,
    Rule,
    RuleError,
    check_rule,
)
from tests.support.synthetic import make_case

MEASURES = Measures(make_case([]), coverage=1.0)
FIX = Fix("some-fix", "Do less", "Use a smaller batch.")


def detect(*titles: str) -> Examine:
    def examine(_measures: Measures, _limits: Limits) -> Iterable[Finding]:
        return [Finding("some-code", Severity.INFO, 1.0, title, "") for title in titles]

    return examine


RULE = Rule("some-code", "slow", "s", "By steps.", "t", "f", detect("steps"), needs=("joined",))


def titles(rule: Rule) -> list[str]:
    return [finding.title for finding in rule.apply(MEASURES, {})]


def test_each_detector_runs_if_its_own_needs_are_met() -> None:
    stacks = Detector(detect("stacks"), "By stacks.", needs=("coverage",))
    traces = Detector(detect("traces"), "By traces.", needs=("traced",))
    rule = replace(RULE, alternatives=(stacks, traces))
    assert titles(rule) == ["stacks"]
    assert rule.how_measured == "By steps. By stacks. By traces."


def test_better_facts_silence_a_detector() -> None:
    assert titles(replace(RULE, alternatives=(Detector(detect("x"), unless=("joined",)),))) == ["x"]
    assert titles(replace(RULE, alternatives=(Detector(detect("x"), unless=("coverage",)),))) == []


def test_a_fallback_runs_only_if_nothing_else_was_found() -> None:
    console = Detector(detect("console"), fallback=True)
    rule = replace(RULE, alternatives=(console, Detector(detect("stacks"))))
    assert titles(rule) == ["stacks"]
    assert titles(replace(RULE, alternatives=(console,))) == ["console"]


def test_a_detector_adds_to_what_others_found_and_finds_nothing_by_itself() -> None:
    def add(finding: Finding, _: Measures) -> Addition | None:
        if finding.title != "steps":
            return None
        return Addition("It printed so.", fixes=(FIX,), replaces=("other",), gives_way=True)

    console = Detector(None, add=add)
    rule = replace(RULE, examine=detect("steps", "traces"), needs=(), alternatives=(console,))
    steps, traces = rule.apply(MEASURES, {})
    assert (steps.cause, steps.fixes, steps.replaces) == ("It printed so.", (FIX,), ("other",))
    assert steps.gives_way
    assert (traces.cause, traces.fixes, traces.gives_way) == ("", (), False)
    assert titles(replace(RULE, alternatives=(console,))) == []


def test_needs_of_alternatives_are_unmet_unless_better_facts_are_there() -> None:
    traces = Detector(detect("traces"), needs=("traced",))
    covered = Detector(detect("stacks"), needs=("sampled",), unless=("coverage",))
    rule = replace(RULE, alternatives=(traces, covered))
    assert rule.list_unmet_needs(MEASURES) == ["joined", "traced"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"needs": ("stragler",)}, "'stragler', which is no measure; did you mean 'stragglers'"),
        ({"alternatives": (Detector(detect(), needs=("case",)),)}, "'case'"),  # type: ignore[arg-type]
        ({"alternatives": (Detector(detect(), unless=("x",)),)}, "'x'"),  # type: ignore[arg-type]
        ({"limits": (Limit("a", 1, "s", ""), Limit("a", 2, "s", ""))}, "'a'"),
        ({"limits": (Limit("a b", 1, "s", ""),)}, "'a b'"),
        ({"limits": (Limit("a", -1, "s", ""),)}, "some-code.a"),
        ({"limits": (Limit("a", float("nan"), "s", ""),)}, "some-code.a"),
    ],
)
def test_a_wrong_declaration_is_refused(wrong: dict[str, tuple[str, ...]], message: str) -> None:
    assert check_rule(RULE) is RULE
    with pytest.raises(RuleError, match=message):
        check_rule(replace(RULE, **wrong))  # type: ignore[arg-type]


def test_needs_are_the_measures_that_can_be_none() -> None:
    optional = {field.name for field in fields(Measures) if str(field.type).endswith("| None")}
    assert set(get_args(Need)) == optional


def test_rules_read_no_limit_that_is_not_declared() -> None:
    declared = {limit.name for rule in OWN for limit in rule.limits}
    read = {
        node.slice.value
        for path in Path(rules.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "limits"
        and isinstance(node.slice, ast.Constant)
    }
    assert read
    assert read <= declared
