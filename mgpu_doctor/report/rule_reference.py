"""A rule explained: for the terminal, and as the reference in docs/findings.md."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mgpu_doctor.advice.treatment_catalogue import find_by_code
from mgpu_doctor.analysis.missing_measures import STEP_MEASURES
from mgpu_doctor.formatting import format_bytes
from mgpu_doctor.rules.rule import Limit, Rule

WIDTH, NARROW = 88, 80
FAMILIES = {
    "hang": "Hang and stall",
    "slow": "Slow",
    "training": "What is being trained",
    "failed": "Failed",
    "doctor": "About the doctor itself",
}
"""Families in the order of the reference; others follow."""
PREFACE = """\
# Findings

What `mgpu-doctor diagnose`, `top` and `report` can say. This page is made of the rules themselves:
`mgpu-doctor explain --markdown`; `mgpu-doctor explain CODE` prints one of them.

Limits can be set in the `pyproject.toml` of the folder in which the doctor is started, or of one
above it, and findings that are not wanted can be left out:

```toml
[tool.mgpu-doctor]
ignore = ["lr-unscaled"]

[tool.mgpu-doctor.input-bound]
share = 0.15
```

[Whose file is used](guide.md#change-limits-or-ignore-a-finding), and whose is not.

The phases of a step on a GPU are timed by the GPU itself, in some of the steps, and ranks are
compared by these steps alone. Phases that only the host's clock measured are not compared, because
the host runs ahead of the device: no rank is called a straggler by them, no job `input-bound`, and
the report lists what was not examined. None of this has been seen on a GPU yet
([what to check](gpu.md)).
"""
CLOCK = (
    "On CPUs, the host's clock measures the phases. On GPUs, the device's own does, in some of the "
    "steps; what only the host's clock measured is not compared, because the host runs ahead of "
    "the device. Reports name the clock and the run-ahead of each rank. Not yet seen on a GPU."
)
"""A note on rules that compare or add up phases."""

_fill = functools.partial(textwrap.fill, break_on_hyphens=False)


def list_rules(rules: Iterable[Rule]) -> str:
    """Returns one or two lines for each rule, under a heading for each family."""
    listed = list(rules)
    width = max(len(rule.code) for rule in listed) + 2
    indent = " " * (width + 2)
    parts = []
    for title, members in _families(listed):
        lines = [
            _fill(f"  {rule.code:<{width}}{rule.summary}", NARROW, subsequent_indent=indent)
            for rule in members
        ]
        parts.append("\n".join([title, *lines]))
    return "\n\n".join(parts)


def _families(rules: Sequence[Rule]) -> Iterator[tuple[str, list[Rule]]]:
    """Yields the heading and the rules of each family."""
    families = list(FAMILIES) + sorted({rule.family for rule in rules} - set(FAMILIES))
    for family in families:
        members = [rule for rule in _ordered(rules) if rule.family == family]
        if members:
            yield FAMILIES.get(family, family.capitalize()), members


class Section(NamedTuple):
    """A part of an explanation. `items`: paragraphs, whose further lines begin with `hanging`."""

    title: str
    items: tuple[str, ...]
    hanging: str = ""


def explain_rule(rule: Rule) -> str:
    """Returns a rule's full explanation."""
    parts = [f"{rule.code} ({rule.family})\n{_fill(rule.summary, WIDTH)}"]
    for title, items, hanging in explained(rule):
        filled = "\n".join(_fill(item, WIDTH - 2, subsequent_indent=hanging) for item in items)
        parts.append(f"{title}\n{textwrap.indent(filled, '  ')}")
    return "\n\n".join(parts)


def explained(rule: Rule) -> Iterator[Section]:
    """Yields the parts of a rule's explanation, what to do first."""
    for title, text in _sections(rule):
        yield Section(title, (text,))
        if title == "Thresholds" and rule.limits:
            yield Section(
                f"Limits, to be set in [tool.mgpu-doctor.{rule.code}]",
                tuple(_limit(limit) for limit in rule.limits),
                "    ",
            )


def reference_page(rules: Sequence[Rule]) -> str:
    """Returns every rule as Markdown."""
    parts = [PREFACE]
    for title, members in _families(rules):
        parts.append(f"## {title}\n")
        parts += [_markdown(rule) for rule in members]
    return "\n".join(parts)


def _ordered(rules: Iterable[Rule]) -> list[Rule]:
    return sorted(rules, key=lambda rule: (rule.family, rule.code))


def _sections(rule: Rule) -> list[tuple[str, str]]:
    by_phases = not {*rule.needs}.isdisjoint(STEP_MEASURES)
    tried = "; ".join(
        f"`mgpu-doctor treat --only {treatment.name}` ({_lower(treatment.summary)})"
        for treatment in find_by_code(rule.code)
    )
    sections = [
        ("What to do", rule.fixes),
        *([("To try a fix and measure its gain", f"{tried}.")] if tried else []),
        ("How it is measured", rule.how_measured),
        *([("Clock", CLOCK)] if by_phases else []),
        ("Thresholds", rule.thresholds),
    ]
    if rule.replaces:
        sections.append(("Reported instead of", f"{', '.join(rule.replaces)} (for the same rank)."))
    if rule.unverified:
        sections.append(("Not yet verified", rule.unverified))
    return sections


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _limit(limit: Limit) -> str:
    default, unit = _default(limit)
    return f"{limit.name} = {default} ({unit}): {limit.meaning}"


def _default(limit: Limit) -> tuple[str, str]:
    """Returns the default value with its unit."""
    if limit.unit == "bytes":
        return f"{limit.default:.0f}", f"bytes: {format_bytes(limit.default)}"
    return f"{limit.default:g}", limit.unit


def _markdown(rule: Rule) -> str:
    lines = [f"### `{rule.code}`\n", f"{rule.summary}\n"]
    for title, text in _sections(rule):
        lines.append(f"**{title}.** {text}\n")
        if title == "Thresholds" and rule.limits:
            lines += ["| limit | default | unit | meaning |", "|---|---|---|---|"]
            lines += [
                f"| `{limit.name}` | {' | '.join(_default(limit))} | {_cell(limit.meaning)} |"
                for limit in rule.limits
            ]
            lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
