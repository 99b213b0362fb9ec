"""Probes: each reads one source and writes facts; none judges."""

from __future__ import annotations


def auto() -> bool:
    """Watches this process: the line for scripts whose launcher drops PYTHONPATH.

    `import mgpu_probes; mgpu_probes.auto()` goes before the training. The black boxes go to the
    folder in MGPU_DOCTOR_BOXES; without it, or where the process is watched already, nothing
    happens and False is returned.
    """
    from . import private

    return private.install()
