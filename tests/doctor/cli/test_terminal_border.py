"""Output to a terminal: text and requested colours pass, escape sequences do not."""

from __future__ import annotations

import io
import sys
import unicodedata

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.terminal_text import harmless

from mgpu_doctor.cli import terminal_output
from mgpu_doctor.cli.terminal_output import SafeStream, guard_streams
from mgpu_doctor.launch.messages import make_one_line, print_message

BOLD, PLAIN = "\x1b[1;31m", "\x1b[0m"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Screen()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("plain", "plain"),
        ("a\tb\nc", "a\tb\nc"),
        ("ノード é – ✓", "ノード é – ✓"),
        ("\x1b[2Jcleared", "cleared"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b[38;5;1mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "0;titlerest"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "8;;http://xlink8;;"),
        ("\x1bPq\x1b\\\x1b(0\x1bcx", "qx"),
        ("\x1b\x1b[\x1b[31m31m", "31m"),
        ("a\rb\x08c\x7fd\x00e\x85f", "abcdef"),
        ("\u202eleft\u2066\u061c\u200e\ufeff", "left"),
        ("\u2028\u2029\U000e0041\u00ad", ""),
        ("\udcff\udc9b2J", "\ufffd\ufffd2J"),
    ],
)
def test_harmless(words: str, shown: str) -> None:
    assert harmless(words) == shown


@given(st.text(st.characters()) | st.text(st.sampled_from("\x1b\x9b[]0;m\x07\\ \n\rA")))
def test_whatever_it_is_no_control_is_left(words: str) -> None:
    kept = harmless(words)
    assert not [
        one for one in kept if unicodedata.category(one) in ("Cc", "Cs") and one not in "\t\n"
    ]
    assert harmless(kept) == kept
    assert "\n" not in make_one_line(words)
    assert "\t" not in make_one_line(words)


def test_a_sequence_that_is_left_open_swallows_nothing() -> None:
    for opening in ("\x1b]0;", "\x1bP", "\x1b_", "\x9d", "\x1b", "\x9b"):
        assert harmless(f"{opening}bad cannot be read").endswith("cannot be read")


def test_colours_pass_to_a_terminal_and_nothing_else_does(screen: Screen) -> None:
    border = SafeStream(screen)
    border.write(f"{BOLD}wrong\x1b]0;owned\x07\x1b[2J{PLAIN} \x1b[\x1b[31mend\n")
    assert screen.getvalue() == f"{BOLD}wrong0;owned{PLAIN} \x1b[31mend\n"


@pytest.mark.parametrize("setting", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_where_none_are_wanted(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, setting: tuple[str, str]
) -> None:
    monkeypatch.setenv(*setting)
    SafeStream(screen).write(f"{BOLD}wrong{PLAIN}\n")
    assert screen.getvalue() == "wrong\n"


def test_no_colours_into_a_file() -> None:
    file = io.StringIO()
    SafeStream(file).writelines([f"{BOLD}wrong{PLAIN}\n", "more"])
    assert file.getvalue() == "wrong\nmore"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_cannot_be_encoded_is_no_error(encoding: str) -> None:
    raw = io.BytesIO()
    border = SafeStream(io.TextIOWrapper(raw, encoding))
    border.write("é ✓ \udcff\n")
    border.flush()
    expected = {"ascii": b"? ? ?\n", "latin-1": b"\xe9 ? ?\n", "utf-8": "é ✓ \ufffd\n".encode()}
    assert raw.getvalue() == expected[encoding]


def test_sentences_have_no_colours_and_no_lines_of_others(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    print_message(f"{BOLD}a\nmgpu-doctor: b\x1b]0;c")
    assert screen.getvalue() == "mgpu-doctor: a mgpu-doctor: b0;c\n"
    monkeypatch.setattr(sys, "stdout", screen)
    terminal_output.print_line(f"{BOLD}d\ne")
    assert screen.getvalue().endswith("\nd e\n")


def test_all_that_is_written_goes_through_the_border(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    undo = guard_streams()
    again = guard_streams()
    stream: object = sys.stdout
    assert isinstance(stream, SafeStream)
    assert not isinstance(stream.inner, SafeStream), "once"
    print("\x1b]0;a\x07")
    click.echo("\x1b]0;b\x07", err=True)
    click.echo(b"\x1b]0;c\x07")
    sys.stdout.buffer.write(b"\x1b]0;d\x07\xff")
    terminal_output.write_control_text("\r\x1b[K")
    again()
    undo()
    assert screen.getvalue() == "0;a\n0;b\n0;c\n0;d\ufffd\r\x1b[K"
    assert sys.stdout is screen


def test_streams_that_are_closed_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    undo = guard_streams()
    print_message("nobody listens")
    terminal_output.write_control_text("x")
    assert sys.stdout is None
    undo()
