"""The launcher's voice."""

from __future__ import annotations

import contextlib
import sys


def say(sentence: str) -> None:
    """One sentence to the user, on standard error. A closed one is no reason to stop."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"mgpu-doctor: {sentence}\n")
        sys.stderr.flush()
