"""Copies a fix or a command to the clipboard.

The terminal is asked with OSC 52, also over ssh. tmux ignores that by default, so inside tmux its
own command is used, too. Neither says whether another program can paste it.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from textual.app import App

from mgpu_doctor.findings import Finding
from mgpu_doctor.report import text
from mgpu_doctor.tui.keys import NOT_NOW

TMUX_WITHIN = 2.0
"""Seconds after which tmux has not answered."""


def copy_fix(app: App[Any], finding: Finding | None) -> None:
    """Copies the finding's first fix."""
    fix = finding.fixes[0] if finding is not None and finding.fixes else None
    if fix is None:
        app.notify(NOT_NOW["copy_fix"], markup=False)
    else:
        copy(app, code_of(fix.how or fix.summary), text.line(fix.summary))


def code_of(how: str) -> str:
    """Returns what one would paste of a fix, cleaned: the code in its sentence, a line each, or all
    of it if it is a command or has no code."""
    instructions = text.clean(how).strip()
    codes = text.with_code(instructions, lambda _: "", lambda code: f"{code}\n").strip()
    return codes if codes and text.is_prose(instructions) else instructions


def copy(app: App[Any], words: str, what: str) -> None:
    """Copies words, and says what has been copied."""
    app.copy_to_clipboard(words)
    if "TMUX" in os.environ and _give_to_tmux(words):
        where = "Copied; in tmux, prefix ] pastes it"
    else:
        where = "Copied, if the terminal allows it (OSC 52)"
    app.notify(f"{where}: {what}", markup=False)


def _give_to_tmux(words: str) -> bool:
    """Returns whether tmux has it as its newest buffer; it then passes it on to its terminal, as
    its `set-clipboard` says."""
    command = ["tmux", "load-buffer", "-w", "-"]
    try:
        subprocess.run(
            command, input=words.encode(), capture_output=True, timeout=TMUX_WITHIN, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
