"""What a filter means, and the message for an invalid one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.tui.filter.fields import ALIASES, FIELDS
from mgpu_doctor.tui.filter.language import (
    DEEPEST,
    MOST_CHARACTERS,
    FilterError,
    all_of,
    caret,
    parse,
    pointed,
)
from mgpu_doctor.tui.view import Row
from tests.support.diagnoses import rank
from tests.support.frames import GIB, gpu

STEP = {"input": 0.010, "forward": 0.020, "backward": 0.030, "wait": 0.040, "transfer": None}
RANK = rank(3, host="node-a", phases=STEP, last_step=399, where="all_reduce train.py:87")
RANK = replace(RANK, state="running", exit_code=None, device="cuda:0")
ROW = Row(RANK, gpu(2, fan=0.3, sm_clock_mhz=1755.4), (4003, 99), "node-a", "ann")
NOTHING = Row(None, Device(7, vendor=""), (), None, None)


def row(**changes: Any) -> Row:
    return ROW._replace(device=gpu(2, **changes))


@pytest.mark.parametrize(
    "typed",
    [
        "rank:3 & util>5",
        "rank=0-3,6",
        "ranks=3",
        "gpu:2",
        "gpus=0-3",
        "gpu!=0,1",
        "name:h100",
        "name:A100,h100",
        "uuid=GPU-2",
        "vendor=nvidia",
        "util>=92",
        "util=92%",
        "util:90-95",
        "mem>77%",
        "mem=62GiB",
        "memory>=62g",
        "mem<66.6GB",
        "mem:60-70GiB",
        "power<0.7kW",
        "temperature=62°C",
        "temp:60C-62",
        "clock=1755",
        "clock<1.8GHz",
        "fan=30%",
        "pid:99",
        "pid=4003",
        "host=node-a",
        "host!=node-b",
        "user:AN",
        "state=running",
        "state:RUN",
        "device:cuda:0",
        "where:train.py",
        "step:399",
        "time=100ms",
        "own=60ms",
        "own=60%",
        "wait>39ms wait<=0.04s",
        "input<1000us | input=10ms",
        "transfer=?",
        "transfer:unknown",
        "util!=?",
        "h100",
        "'all_reduce train.py:87'",
        "!rank:4",
        "not rank:4 and not rank:5",
        "rank:4 or gpu:2 || gpu:9",
        "(rank:4 | rank:3) && (util<5 | temp>60)",
        "rank:4 gpu:1 | gpu:2",
        "RANK:3 AND Util>5",
        "rank : 3 , 4",
        "util == 92",
    ],
)
def test_it_matches(typed: str) -> None:
    assert parse(typed).matches(ROW)
    assert not parse(f"!({typed})").matches(ROW)


@pytest.mark.parametrize(
    "typed",
    [
        "rank:4",
        "rank:0-2,4-9",
        "rank:3 util<5",
        "name=h100",
        "host=NODE-A",
        "state!=running",
        "mem>80%",
        "util=91.9",
        "pid!=99",
        "util=?",
        "transfer<1ms",
        "transfer!=1ms",
        "a100",
        "rank:3 (gpu:1 | gpu:0)",
    ],
)
def test_it_does_not_match(typed: str) -> None:
    assert not parse(typed).matches(ROW)


@pytest.mark.parametrize("field", ["util", "mem", "power", "temp", "clock", "fan", "step", "own"])
def test_what_is_not_known_matches_no_comparison(field: str) -> None:
    unit = {"mem": "GiB", "own": "s"}.get(field, "")
    for sign in ("<", "<=", ">", ">=", "=", "!="):
        assert not parse(f"{field}{sign}0{unit}").matches(NOTHING)
    assert parse(f"{field}=?").matches(NOTHING)
    assert not parse(f"{field}!=?").matches(NOTHING)


@pytest.mark.parametrize("field", ["name", "uuid", "host", "user", "state", "device", "where"])
def test_text_that_is_not_known_neither(field: str) -> None:
    for filtered in (f"{field}:a", f"{field}=a", f"{field}!=a"):
        assert not parse(filtered).matches(NOTHING)
    assert parse(f"{field}:unknown").matches(NOTHING)


def test_not_finite_is_not_known() -> None:
    assert parse("util=?").matches(row(utilization=float("nan")))
    assert not parse("temp>0").matches(row(temperature=float("inf")))


def test_a_share_of_an_unknown_total_is_not_known() -> None:
    for total in (None, 0):
        assert not parse("mem<200%").matches(row(memory_total=total))
        assert parse("mem<200GiB").matches(row(memory_total=total))


def test_a_number_matches_what_rounds_to_it() -> None:
    for known, typed, expected in (
        (0.9049, "util=90", True),
        (0.906, "util=90", False),
        (0.906, "util=90.6", True),
        (0.91, "util=90.6", False),
    ):
        assert parse(typed).matches(row(utilization=known)) is expected
    assert parse("mem=61.5GiB").matches(row(memory_used=int(61.52 * GIB)))
    assert not parse("rank=2").matches(ROW)


def test_markup_and_escapes_of_others_are_matched_as_they_are_seen() -> None:
    hostile = row(name="[bold]\x1b[31mred\u202e H100")
    assert parse("name:'[bold]red H100'").matches(hostile)


@pytest.mark.parametrize(
    ("typed", "column", "says"),
    [
        ("", 0, "expected a filter such as util<5, not nothing"),
        ("  ", 2, "expected a filter"),
        ("utl<5", 0, "did you mean util?"),
        ("rank:3 tmep>60", 7, "did you mean time or temp?"),
        ("rnk<5", 0, "did you mean rank?"),
        ("xyzzy<5", 0, "gpu, name, uuid"),
        ("util<", 5, "expected a number after util<"),
        ("host:", 5, "expected text after host:"),
        ("host:''", 5, "expected text after host:"),
        ("util<x", 5, "expected a number for util, not x"),
        ("util<5GiB", 5, "expected a number with a unit: % for util"),
        ("gpu:0-x", 4, "expected a number for gpu"),
        ("gpu:3-0", 4, "expected the smaller end of the range first"),
        ("gpu:1.5", 4, "expected a whole number"),
        ("gpu:5%", 4, "without a unit"),
        ("mem>80", 4, "expected a number with a unit: %, KiB"),
        ("mem:60%-70GiB", 4, "both ends"),
        ("own>30", 4, "ms, s, us, %"),
        ("host<3", 4, "expected : or = as host is text"),
        ("util<5,6", 7, "expected one number after <"),
        ("util<?", 4, "expected util=? to find unknown values"),
        ("util", 4, "expected a comparison such as util>"),
        ("state & rank:3", 5, "expected a comparison such as state:"),
        ("(rank:3", 0, "expected this bracket to be closed"),
        ("rank:3)", 6, "expected the end or &, not )"),
        ("rank:3 |", 8, "not nothing"),
        ("rank:3 & & util<5", 9, "not &"),
        ("<5", 0, "expected the name of a field before <"),
        ("gpu:1 = 2", 6, "before ="),
        ("name:'a", 5, "expected the quote to be closed by another '"),
        ("'  '", 0, "expected text in the quotes"),
        ("a , b", 2, "not ,"),
        ("util<٣", 5, "expected a number"),
        ("util<" + "9" * 400, 5, "expected a number"),
        ("!" * (DEEPEST + 1) + "a", DEEPEST, "inside each other"),
        ("(" * 900, DEEPEST, "inside each other"),
        ("a" * (MOST_CHARACTERS + 1), MOST_CHARACTERS, "at most 1000 characters"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_errors_point_at_the_column(typed: str, column: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(typed)
    assert says in caught.value.message
    assert caught.value.column == column
    assert str(caught.value) == f"column {column + 1}: {caught.value.message}"
    assert caught.value.message.isprintable()


def test_the_caret_stands_under_the_place() -> None:
    typed = "name:漢字 \x1b utl<5"
    with pytest.raises(FilterError) as caught:
        parse(typed)
    shown, mark, sentence = pointed(typed, caught.value).splitlines()
    assert shown == "name:漢字 ? utl<5"
    # Each of the two wide characters takes two cells.
    assert mark == caret(typed, caught.value.column) == " " * 12 + "^"
    assert sentence.startswith("column 11: ")


def test_several_filters_hold_together() -> None:
    both = all_of([parse("gpu:0-3"), parse("util>5 | temp>90")])
    assert both is not None
    assert str(both) == "gpu:0-3 & (util>5 | temp>90)"
    assert both.matches(ROW)
    assert all_of([parse("gpu:2")]) == parse("gpu:2")
    assert all_of([]) is None


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("RANKS=0-3,6 and Util<5", "rank:0-3,6 & util<5"),
        ("a b|c", "a & b | c"),
        ("a (b|c)", "a & (b | c)"),
        ("not (a b)", "!(a & b)"),
        ("device:cuda:0", 'device:"cuda:0"'),
        ("'say \"hi\"'", "'say \"hi\"'"),
        ("mem>5gib", "mem>5GiB"),
        ("mem:60-70g", "mem:60G-70G"),
        ("util!=unknown", "!util=?"),
        ("host:'?'", 'host:"?"'),
    ],
)
def test_it_is_reported_in_one_way(typed: str, expected: str) -> None:
    assert str(parse(typed)) == expected
    assert parse(expected) == parse(typed)


def test_the_documentation_names_every_field() -> None:
    words = (Path(__file__).parents[4] / "docs/filter.md").read_text(encoding="utf-8")
    assert [name for name in (*FIELDS, *ALIASES) if f"`{name}`" not in words] == []
