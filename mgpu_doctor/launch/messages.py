"""The doctor's own messages on standard error: one line each, safe for a terminal."""

from __future__ import annotations

import contextlib
import sys

from mgpu_probes.outside.terminal_text import harmless


def make_one_line(words: str) -> str:
    """`harmless(words)` with spaces for tabs and newlines, so that no value starts a line."""
    return harmless(words.replace("\t", " ").replace("\n", " "))


def print_message(sentence: str) -> None:
    """Prints one sentence for the user. A closed standard error is ignored."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"mgpu-doctor: {make_one_line(sentence)}\n")
        sys.stderr.flush()
