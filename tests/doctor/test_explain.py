"""`explain` and the catalogue of rules."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner

import mgpu_doctor.cli.explain
from mgpu_doctor.cli import app
from mgpu_doctor.rules import catalogue as module
from mgpu_doctor.rules.catalogue import OWN, catalogue
from mgpu_doctor.rules.rule import Rule
from tests.support.loops import over

assert mgpu_doctor.cli.explain  # importing it adds the verb


def explain(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["explain", *arguments])
    return result.exit_code, result.stdout, result.stderr


@over("rule", OWN, lambda rule: rule.code)
def test_every_rule_explains_itself(rule: Rule) -> None:
    code, out, _ = explain(rule.code)
    assert code == 0
    words = " ".join(out.split())
    for text in (rule.summary, rule.how_measured, rule.thresholds, rule.fixes):
        assert len(text) > 20
        assert " ".join(text.split()) in words
    for limit in rule.limits:
        many = limit.unit == "bytes"  # 67108864 can be copied into the settings, 6.7e+07 not read
        assert f"{limit.name} = {limit.default:{'.0f' if many else 'g'}}" in words
        assert " ".join(limit.meaning.split()) in words


def test_the_reference_in_the_docs_is_made_of_the_rules() -> None:
    """`make docs` writes it anew."""
    written = (Path(__file__).parents[2] / "docs/findings.md").read_text(encoding="utf-8")
    code, out, _ = explain("--markdown")
    assert code == 0
    assert written == out


def test_codes_are_unique() -> None:
    codes = [rule.code for rule in OWN]
    assert len(codes) == len(set(codes))


def test_without_a_code_all_are_listed() -> None:
    code, out, _ = explain()
    assert code == 0
    assert all(rule.code in out for rule in OWN)


def test_an_unknown_code_offers_near_ones() -> None:
    code, out, err = explain("stragler-compute")
    assert (code, out) == (2, "")
    assert "straggler-compute" in err
    assert explain("zzzz")[0] == 2


def entry_point(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    class Point(EntryPoint):
        def load(self) -> object:
            if isinstance(value, Exception):
                raise value
            return value

    point = Point("theirs", "their.rules:RULES", module.GROUP)
    monkeypatch.setattr(module, "_points", lambda: (point,))


def test_rules_of_other_packages_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Rule("their-code", "slow", "s", "m", "t", "f", lambda _measures, _limits: ())
    entry_point(monkeypatch, (theirs,))
    assert catalogue().rules[-1] is theirs


@pytest.mark.parametrize("value", [ImportError("gone"), (OWN[0],), ("no rule",), 7])
def test_broken_packages_are_reported(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    entry_point(monkeypatch, value)
    found = catalogue()
    assert found.rules == OWN
    assert [one.probe for one in found.broken] == ["rules of theirs"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("straggler-imput", "Did you mean straggler-input"),
        ("hang", "Did you mean failed-hangup, hang-collective-mismatch, hang-rank-dead?"),
        ("nonsens", "`mgpu-doctor explain` lists all codes."),
    ],
)
def test_an_unknown_code_gets_near_ones_only(typed: str, hint: str) -> None:
    code, _, err = explain(typed)
    assert code == 2
    assert f"no finding has the code {typed}. {hint}" in err
