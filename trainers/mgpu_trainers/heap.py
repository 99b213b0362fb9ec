"""A heap that Python's garbage collector takes long to look through."""

import gc
import time
from typing import ClassVar


class Heap:
    """Small objects, kept for as long as the process lives."""

    kept: ClassVar[list[list[int]]] = []
    FIRST = 100_000

    @classmethod
    def grow(cls, seconds: float) -> None:
        """Until a full collection takes so long."""
        more, took = cls.FIRST, 0.0
        while took < seconds:
            cls.kept += [[each] for each in range(more)]
            began = time.perf_counter()
            gc.collect()
            took = time.perf_counter() - began
            more = int(len(cls.kept) * min(1.0, max(0.1, seconds / took - 1)))
