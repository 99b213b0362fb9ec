"""A treatment that saves checkpoints while training continues."""

from __future__ import annotations

import copy
import functools
import os
from typing import TYPE_CHECKING, Any

from .. import masked_threads
from ..wrap import hidden

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply
    from .treatment_adapter import Change

NO_PATH = "no-path"


class _Writer:
    """Writes one file at a time, in a thread that the interpreter waits for at its end. The file is
    opened at once: the script may rename or link it at any time after."""

    def __init__(self) -> None:
        self._wait: Callable[[], None] | None = None

    def write(self, save: Any, content: Any, path: Any, kwargs: dict[str, Any]) -> None:
        """Writes a copy of the content."""
        self.wait()
        copied = copy.deepcopy(content)
        file = open(path, "wb")  # noqa: SIM115 - closed by the thread

        def write() -> None:
            with file:
                save(copied, file, **kwargs)

        self._wait = masked_threads.start_awaited(write, "checkpoint")

    def wait(self) -> None:
        """Waits until the last file is written."""
        if self._wait is not None:
            self._wait()
            self._wait = None


def _save_in_background(change: Change, _: ProbeContext, module: ModuleType) -> None:
    """Copies what is saved to a path, and writes it in the background. Loading waits for it, and so
    does the next saving."""
    serialization: Any = module
    save, load = serialization.save, serialization.load
    writer = _Writer()

    @functools.wraps(save)
    def save_later(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if args or not isinstance(f, (str, os.PathLike)):
            change.refuse(NO_PATH)
            return save(obj, f, *args, **kwargs)
        if not change.attempt(lambda: writer.write(save, obj, f, kwargs)):
            return save(obj, f, **kwargs)
        change.note()
        return None

    @functools.wraps(load)
    def load_after(*args: Any, **kwargs: Any) -> Any:
        writer.wait()
        return load(*args, **kwargs)

    serialization.save, serialization.load = hidden(save_later), hidden(load_after)


APPLICATIONS: dict[str, dict[str, Apply]] = {
    "checkpoint-in-background": {"torch.serialization": _save_in_background}
}
"""For each treatment, the modules that it changes, and the function that changes each."""
