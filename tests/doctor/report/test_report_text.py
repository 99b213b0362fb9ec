"""How numbers and untrusted text are formatted."""

from __future__ import annotations

import pytest

from mgpu_doctor.formatting import (
    format_bytes,
    format_rank_numbers,
    format_ranks,
    format_seconds,
    format_share,
)
from mgpu_doctor.report import phase_bars, text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "?"),
        (float("nan"), "?"),
        (0.0, "0 s"),
        (5e-7, "0.5 µs"),
        (0.00012, "120 µs"),
        (0.0024, "2.4 ms"),
        (0.031, "31 ms"),
        (0.0662, "66.2 ms"),
        (0.9996, "1 s"),
        (1.24, "1.2 s"),
        (26.4, "26.4 s"),
        (59.97, "1 min"),
        (192, "3 min 12 s"),
        (11520, "3 h 12 min"),
        (90000, "1 d 1 h"),
        (-0.031, "-31 ms"),
    ],
)
def test_seconds(value: float | None, message: str) -> None:
    assert format_seconds(value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "?"), (0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (3 << 40, "3 TiB")],
)
def test_size(value: float | None, message: str) -> None:
    assert format_bytes(value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "?"), (0.0, "0 %"), (0.0432, "4.3 %"), (0.454, "45 %"), (1, "100 %")],
)
def test_percent(value: float | None, message: str) -> None:
    assert format_share(value) == message


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (None, "s", "?"),
        (0.031, "s", "31 ms"),
        (0.99, "1", "99 %"),
        (1.3, "ratio", "1.3 times"),
        (12, "steps", "12 steps"),
        ("SIGKILL", "", "SIGKILL"),
        (float("inf"), "steps", "? steps"),
    ],
)
def test_quantity(value: float | str | None, unit: str, message: str) -> None:
    assert text.quantity(value, unit) == message


def test_ranks() -> None:
    assert format_rank_numbers([5, 2, 0, 1]) == "0-2, 5"
    assert format_rank_numbers(range(0, 100, 2), limit=2) == "0, 2 and 48 more"
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([3, 4]) == "ranks 3 and 4"
    assert format_ranks([1, 3, 5, 7]) == "ranks 1, 3, 5 and 7"
    assert format_ranks(range(1, 64, 2)) == "ranks 1, 3, 5 … 63"
    assert format_ranks([1, 3, 5, 7, 10]) == "ranks 1, 3, 5, 7 and 10"


def test_cut_keeps_both_ends() -> None:
    assert text.cut("/a/long/path/to/train.py", 11) == "/a/lo…in.py"
    assert text.cut("short", 5) == "short"
    assert text.cut("anything", 1) == "…"
    assert text.cut_words("see /a/long/path/to/train.py now", 11) == "see /a/lo…in.py now"


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[2Jgone",
        "\x1b]0;title\x07gone",
        "\x1b]8;;http://x\x1b\\gone",
        "\x9b31mgone",
        "\u202egone",
        "gone\x00\x07",
        "\x1bPdcs\x1b\\gone",
        "\ud800gone",
    ],
)
def test_nothing_steers_the_terminal(hostile: str) -> None:
    cleaned = text.clean(hostile)
    assert "gone" in cleaned
    assert cleaned.replace("\ufffd", "").isprintable()
    cleaned.encode("utf-8")


def test_cells_are_as_long_as_their_sum() -> None:
    assert phase_bars.bar_cells([1, 1, 1], 3, 10) in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    assert phase_bars.bar_cells([1.0], 2.0, 11) == [6]
    assert phase_bars.bar_cells([1.0], 0.0, 11) == [0]
    assert sum(phase_bars.bar_cells([0.1] * 7, 0.7, 20)) == 20


def test_between_backticks_is_code_and_nothing_else_is() -> None:
    def told(words: str) -> str:
        return text.with_code(words, str.upper, lambda code: f"<{code}>")

    assert told("run `ls -l` or `w`, then") == "RUN <ls -l> OR <w>, THEN"
    assert told("a ` alone") == "A ` ALONE"
    assert told("`` and ` ` hold none") == "`` AND ` ` HOLD NONE"


def test_a_command_is_no_prose() -> None:
    assert not text.is_prose("torchrun --nproc-per-node 4 train.py")
    assert not text.is_prose("first `a`\nthen `b`")
    assert text.is_prose("`dmesg -T` names it")
    assert text.is_prose("word " * 30)


def test_an_exit_code_has_no_unit() -> None:
    assert text.quantity(1, "code") == "1"


@pytest.mark.parametrize(
    ("how", "prose"),
    [
        ("or ask for more memory.", True),
        ("Let it end by itself, or raise an error (see below).", True),
        ("pip install -e .", False),
        ("kill -CONT 12", False),
        ("DataLoader(..., num_workers=4)", False),
        ("ulimit -n 4096", False),
        ("run `dmesg`", True),
        ("two words\nof a script.", False),
    ],
)
def test_a_sentence_is_no_command(how: str, prose: bool) -> None:
    assert text.is_prose(how) is prose
