"""Creates the probe context of this process, and resets it in forked children."""

from __future__ import annotations

import os
from functools import partial

from .exits import ExitRecorder
from .probe_context import ProbeContext
from .process_metadata import describe_process

_contexts: list[ProbeContext] = []
"""The context of this process, once it has started. It is global because the patched functions are:
any code may import a framework or fork."""


def start() -> ProbeContext:
    """The context of this process; the first call creates it and switches it on."""
    if _contexts:
        return _contexts[0]
    context = ProbeContext()
    _contexts.append(context)
    exits = ExitRecorder(context)
    context.on = True
    context.describe = partial(describe_process, context)
    context.record_exception = exits.record
    context.on_open.append(exits.watch_child)
    exits.install()

    def after_fork() -> None:
        try:
            context.objects.forget()
            exits.forget()
            context.after_fork()
        except Exception as trouble:
            context.fail(trouble)

    os.register_at_fork(after_in_child=after_fork)
    return context
