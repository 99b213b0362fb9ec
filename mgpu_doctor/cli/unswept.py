"""A verb that reads, tells and ends leaves its garbage to the end of its process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unswept() -> Iterator[None]:
    """Nobody looks for cycles among objects meanwhile: facts have none, and to look through the
    millions that a large job leaves takes a tenth of its diagnosis (benchmarks/report_scale.py)."""
    sweeping = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if sweeping:
            gc.enable()
