"""Starts the probe of this process once there is something to see, and again after a fork."""

from __future__ import annotations

import os

from . import exits, process_metadata
from .probe_context import probe

_started: list[bool] = []


def start() -> None:
    """Switches the probe on. Only once."""
    if _started:
        return
    _started.append(True)
    probe.on = True
    probe.birth_facts = process_metadata.certificate
    probe.on_open.append(exits.watch_child)
    exits.install()
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    try:
        process_metadata.forget()
        exits.forget()
        probe.after_fork()
    except Exception as trouble:
        probe.fail(trouble)
