"""Probes: each reads one source and writes facts; none judges."""

from __future__ import annotations


def auto() -> bool:
    """Installs the probe in this process: for scripts whose launcher drops PYTHONPATH.

    Call `import mgpu_probes; mgpu_probes.auto()` before the training. The black box is written to
    the folder in MGPU_DOCTOR_BOXES. If that is not set, or the probe is installed already, this
    does nothing and returns False.
    """
    from . import private

    return private.install()
