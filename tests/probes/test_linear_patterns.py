"""Text that strangers write is read in linear time: console lines, logs, the kernel's log.

Two tests measure time, which tests of this project else do not do. They count the CPU's time and
allow 20 times of what is needed and more.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from mgpu_probes.outside import console_errors, kernel_log, terminal_text, tracebacks
from mgpu_probes.outside.devices import xid_events
from mgpu_probes.outside.flight import nccl_ras
from mgpu_probes.outside.logs import log_blocks, log_files, log_lines, log_scanner, log_shapes

from tests.support.hostile_lines import hostile_lines, seconds
from tests.support.logs import scanned_text
from tests.support.loops import over
from tests.support.patterns import is_ambiguous, repeats_of, variants, work

MODULES = (
    *(
        log_blocks,
        console_errors,
        kernel_log,
        kernel_log,
        xid_events,
        console_errors,
        log_files,
        log_scanner,
        log_shapes,
    ),
    *(log_lines, log_lines, terminal_text, tracebacks, nccl_ras),
)
AS_TEXT = {xid_events: ("_XID", "_IN_A_FILE")}
"""Patterns that are not compiled where they are declared."""
LONGEST = 8192
"""Bytes of a record of the kernel's log; console lines are cut at 4096."""
MOST_WORK = 400
MOST_GROWTH = 1.5
MOST_SECONDS = 0.2
"""For one line. The slowest pattern needs 0.008 s."""
MOST_VARIANTS = 3
LOST = "Connection closed by peer [10.0.0.1]:5"


def compiled(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from compiled(one)


def declared(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any]]]:
    place = module.__name__.rpartition(".")[2]
    for name, value in vars(module).items():
        for number, pattern in enumerate(compiled(value)):
            yield f"{place}.{name}.{number}", pattern
    for name in AS_TEXT.get(module, ()):
        yield f"{place}.{name}", re.compile(vars(module)[name])


PATTERNS = dict(one for module in MODULES for one in declared(module))
every_pattern = over("name", PATTERNS)


def test_there_are_patterns() -> None:
    assert len(PATTERNS) >= 35


@every_pattern
def test_its_work_for_a_character_has_a_bound(name: str) -> None:
    """Wherever it is searched, also if it is only tried at a line's begin today."""
    pattern = PATTERNS[name]
    choices = variants(pattern.pattern, pattern.flags, LONGEST)
    steps = max(work(choice, LONGEST) for choice in choices)
    assert steps <= MOST_WORK
    longer = max(
        work(variant, 4 * LONGEST)
        for variant in variants(pattern.pattern, pattern.flags, 4 * LONGEST)
    )
    assert longer <= MOST_GROWTH * steps
    assert not any(is_ambiguous(part) for choice in choices for part in repeats_of(choice))


@every_pattern
def test_no_line_keeps_its_search_busy(name: str) -> None:
    pattern = PATTERNS[name]
    rng = random.Random(name)
    choices = variants(pattern.pattern, pattern.flags, LONGEST)
    for variant in rng.sample(choices, min(MOST_VARIANTS, len(choices))):
        for line in hostile_lines(variant, rng, LONGEST):
            given = line.encode("latin-1") if isinstance(pattern.pattern, bytes) else line
            assert seconds(partial(pattern.search, given), MOST_SECONDS) <= MOST_SECONDS, line


def test_a_report_of_hostile_threads_is_read_at_once() -> None:
    """It took 0.3 s."""
    lines = ["Fatal Python error: Aborted", *[f"Thread 0x{'6' * 4080}"] * 40]
    assert seconds(lambda: console_errors.parse_console(lines), 0.1) <= 0.1


@pytest.mark.parametrize("seed", range(5))
def test_a_hit_without_a_stamp_has_the_last_one_before_it(seed: int) -> None:
    rng = random.Random(seed)
    lines, expected, stamp = [], {}, (-log_scanner.LOOK_BACK, 0)
    for number in range(3000):
        kind = rng.choices(("stamp", "hit", "other"), (1, 20, 200))[0]
        if kind == "stamp":
            stamp = (number, number % 60)
            lines.append(f"2026-01-02T03:04:{stamp[1]:02}Z step")
        elif kind == "hit":
            lines.append(f"[rank{number}]: {LOST}")
            near = 0 < number - stamp[0] <= log_scanner.LOOK_BACK and stamp[0] >= 0
            expected[number] = 1767323040.0 + stamp[1] if near else None
        else:
            lines.append("nothing")
    hits = scanned_text("\n".join(lines)).hits
    assert {hit.rank: hit.at for hit in hits} == expected


def test_the_lines_before_many_hits_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of 20,000 ranks without time stamps took 17 s."""
    taken = []

    def counted(line: str, *others: Any) -> log_lines.Line:
        taken.append(line)
        return log_lines.split_line(line, *others)

    monkeypatch.setattr(log_scanner, "split_line", counted)
    count = 4000
    hits = scanned_text("\n".join(f"[rank{n}]: {LOST}" for n in range(count))).hits
    assert len(hits) == count
    assert len(taken) <= 2 * count + 3 * log_scanner.SAMPLE
