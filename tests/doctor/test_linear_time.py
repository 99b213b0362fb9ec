"""Every signature is searched in linear time: no line that a stranger writes keeps a search busy.

Two tests here measure time, which tests of this project else do not do: the issue that they close
asks for it. They count the CPU's time, not the clock's, and allow 20 times of what is needed and
more, so a busy machine does not make them fail. A quadratic pattern needs 50 times and more.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from mgpu_probes.outside.logs.log_blocks import WINDOW

from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.case.log_job import FACTS, Fact
from mgpu_doctor.signatures.signature import Signature
from tests.support.all_signatures import ALL_SIGNATURES
from tests.support.hostile_lines import hostile_lines, seconds
from tests.support.loops import over
from tests.support.patterns import is_ambiguous, repeats_of, variants, work

MOST_WORK = 400
"""Steps for each character of a line. The most that a signature needs is 332, 1.3 ms a line."""
MOST_GROWTH = 1.5
"""Of these steps, on a line of four times the length. A quadratic pattern has 4."""
MOST_SECONDS = 0.08
"""For one line of the longest. The slowest signature needs 0.003 s; quadratic ones needed 0.2 s."""
MOST_VARIANTS = 3

WANTED: tuple[Signature | Fact, ...] = (*ALL_SIGNATURES, *FACTS)
every_pattern = over("wanted", WANTED, lambda wanted: wanted.id)


def excess(pattern: str) -> list[str]:
    """What makes a search by this pattern more than linear."""
    found = []
    choices = variants(pattern, 0, WINDOW)
    steps = max(work(variant, WINDOW) for variant in choices)
    if steps > MOST_WORK:
        found.append(f"{steps:.0f} steps for each character")
    longer = max(work(variant, 4 * WINDOW) for variant in variants(pattern, 0, 4 * WINDOW))
    if longer > MOST_GROWTH * steps:
        found.append(f"{longer:.0f} steps for each character of a longer line")
    if any(is_ambiguous(part) for variant in choices for part in repeats_of(variant)):
        found.append("a repeat that can divide its text in several ways")
    return found


@every_pattern
def test_its_work_for_a_character_has_a_bound(wanted: Signature | Fact) -> None:
    assert excess(wanted.pattern) == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"[\w.]+\.cu:",  # tried from each character of a word
        r"\d+ out of the last",
        r"aten\.[\w.]+ got mixed",  # the same, from each `aten.`
        r"\.cu:(?P<line>\d+):? .{1,400}?Assertion `[^`]{0,80}\bindex\b[^`]{0,120}` failed",
        r"^Killed\s{2,}.{1,2000}$",  # two repeats that match the same blanks
        r"first .*second .*third",
        r"^(?:\w+ ?)+$",
        r"^(?:a|ab)+$",
        r"x(?=.*y.*z)",
    ],
)
def test_careless_patterns_are_seen(pattern: str) -> None:
    assert excess(pattern) != []


@pytest.mark.parametrize(
    "pattern",
    [
        r"\b\w+ has been initialized",
        r"(?<!\S)\S+ \[missing",
        r"ranks \[(?:\d+, ?)+\] failed after (?P<seconds>[\d.]+) seconds",
        r"OpType=\w+\b.{0,200}?, but",
        r"^(?:\S{1,200}: line \d+: )?Killed\s*$",
        r"'[^']*' not found",
    ],
)
def test_careful_patterns_are_let_through(pattern: str) -> None:
    assert excess(pattern) == []


def lines_against(wanted: Signature | Fact) -> Iterator[str]:
    """Lines of the greatest length that the reader of logs passes on."""
    rng = random.Random(wanted.id)
    choices = variants(wanted.pattern, 0, WINDOW)
    for variant in rng.sample(choices, min(MOST_VARIANTS, len(choices))):
        yield from hostile_lines(variant, rng, WINDOW)
    example = getattr(wanted, "example", wanted.needle)
    for text in (wanted.needle, example, f"{example[:-1]} "):
        yield (text * WINDOW)[:WINDOW]


@every_pattern
def test_no_line_keeps_its_search_busy(wanted: Signature | Fact) -> None:
    pattern = re.compile(wanted.pattern)
    lines = [*lines_against(wanted)]
    if seconds(lambda: [*map(pattern.search, lines)], MOST_SECONDS) <= MOST_SECONDS:
        return  # all of them in the time of one
    slow = [
        line
        for line in lines
        if seconds(partial(pattern.search, line), MOST_SECONDS) > MOST_SECONDS
    ]
    assert slow == []


def test_a_log_of_hostile_lines_is_read_at_once(tmp_path: Path) -> None:
    """Five lines of 4 KB, which took 3.6 s."""
    needles = (
        "t >= 0 && t < n_classes` failed",
        "Assertion `",
        "input_val >= zero && input_val <= one",
        "triggered tf.function retracing.",
        "killed due to the node running low on memory",
        "before the `notebook_launcher` could create",
        " nodes are available: ",
        "[missing ranks:",
    )
    head = " ".join(needles)
    pumps = (".", "9", "x", "a.cu:1: ", "5/5 nodes are available: ")
    log = tmp_path / "train.log"
    log.write_text("".join(f"{(head + pump * 4096)[:4096]}\n" for pump in pumps), encoding="utf-8")
    load_logs([str(log)])  # compiles the patterns
    assert seconds(lambda: load_logs([str(log)]), 1.0) <= 1.0


def test_a_log_of_lines_that_hold_all_texts_is_read_at_once(tmp_path: Path) -> None:
    """Broken over lines of 100 characters, so that joined lines hold every text many times."""
    text = " ".join(f"{one.needle} {one.example[:-1]}" for one in ALL_SIGNATURES) * 3
    log = tmp_path / "train.log"
    lines = [text[at : at + 100] for at in range(0, len(text), 100)]
    log.write_text("\n".join(lines), encoding="utf-8")
    load_logs([str(log)])  # compiles the patterns
    assert seconds(lambda: load_logs([str(log)]), 3.0) <= 3.0
