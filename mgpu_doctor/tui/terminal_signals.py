"""The terminal under the live screen: signals, and the terminal's disappearance."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

DRAWN_ON = 2
"""Textual draws on standard error."""
HUNG_UP = 128 + signal.SIGHUP
"""The exit code where the terminal is gone, as after a broken ssh connection. Textual 8 then waits
for its writer for ever and its reader spins; there is nothing left to restore, so it just ends."""


def obey_signals(leave: Callable[[], object]) -> None:
    """Interrupted, terminated or hung up: leave, in the loop that runs."""

    def hung_up() -> None:
        end_where_gone()
        leave()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        loop.add_signal_handler(number, leave)
    loop.add_signal_handler(signal.SIGHUP, hung_up)


def end_where_gone() -> None:
    """End the process at once where there is no terminal any more."""
    if not os.isatty(DRAWN_ON):
        os._exit(HUNG_UP)
