"""What the doctor says in its own name, on standard error: one line, harmless for the terminal."""

from __future__ import annotations

import contextlib
import sys

from mgpu_probes.outside.terminal_text import harmless

__all__ = ["harmless", "one_line", "say"]


def one_line(words: str) -> str:
    """`harmless(words)` with spaces for tabs and newlines: nobody begins a line of their own."""
    return harmless(words.replace("\t", " ").replace("\n", " "))


def say(sentence: str) -> None:
    """One sentence to the user. A closed standard error is no reason to stop."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"mgpu-doctor: {one_line(sentence)}\n")
        sys.stderr.flush()
