"""What `top` shows on a machine without jobs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec import structs
from rich.cells import cell_len

from mgpu_doctor.tui.jobs.greeting import Greeting
from mgpu_doctor.tui.view import View
from tests.support.diagnoses import HOSTILE
from tests.support.frames import HEALTHY, NOTHING
from tests.support.screens import check

GREETING = Greeting(("torch 2.9.1", "lightning 2.5.0"), "20260917-101500-train-4711")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_greeting(width: int) -> None:
    lines = GREETING.lines(NOTHING, width, View())
    check("greeting", "\n".join(line.plain.rstrip() for line in lines) + "\n", width)


def test_a_job_needs_no_greeting() -> None:
    assert GREETING.lines(HEALTHY, 80, View()) == []


def test_what_is_not_there_is_reported() -> None:
    bare = structs.replace(NOTHING, devices=None, host=None)
    text = "\n".join(line.plain for line in Greeting((), None).lines(bare, 100, View()))
    assert "none in this Python" in text
    assert "replay" not in text


def test_no_line_is_too_wide_whatever_it_holds() -> None:
    greeting = Greeting((HOSTILE * 9,), HOSTILE * 9)
    for width in (20, 79, 300):
        lines = greeting.lines(NOTHING, width, View())
        assert max(cell_len(line.plain) for line in lines) <= width
        assert not any("\x1b" in line.plain or "\n" in line.plain for line in lines)


def test_this_machine_is_reported_without_importing_a_framework() -> None:
    program = (
        "import sys\nfrom mgpu_doctor.tui.jobs.greeting import Greeting\n"
        "found = Greeting.of_this_machine()\n"
        "assert isinstance(found.frameworks, tuple)\n"
        "print(sorted({'torch', 'tensorflow', 'jax'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
