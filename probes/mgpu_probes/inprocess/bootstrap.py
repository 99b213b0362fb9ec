"""Installs the probe in this process: cheap, silent, and inert until a framework is imported.

Every Python process of a job runs this at its start, so this file and those it imports at its top
import as little as possible.
"""

from __future__ import annotations

import os
import sys

from . import BLOCKS_VARIABLE, BOXES_VARIABLE, TREATMENTS_VARIABLE
from .framework_adapters import load_adapters
from .import_watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from .probe_context import FrameworkAdapter

_watches: list[Watch] = []


def install() -> bool:
    """Starts watching for imports of the frameworks. False if the process is not under observation
    or is watched already."""
    if _watches or not os.environ.get(BOXES_VARIABLE):
        return False
    watched = {name: [adapter] for adapter in load_adapters() for name in adapter.modules}
    if os.environ.get(TREATMENTS_VARIABLE):
        from .treatments.treatment_adapter import load_treatments

        treatments = load_treatments(
            os.environ[TREATMENTS_VARIABLE], os.environ.get(BLOCKS_VARIABLE)
        )
        for name in treatments.modules:
            watched.setdefault(name, []).append(treatments)
    watch = Watch(watched.keys(), _Patch(watched), _fail)
    _watches.append(watch)
    sys.meta_path.insert(0, watch)
    if os.environ.get("RANK"):
        from . import probe_start

        probe_start.start()  # records the exception of a rank that fails before it imports torch
    early = [name for name in watched if name in sys.modules]
    for name in early:
        watch.patch(name, sys.modules[name])
    if any(name.startswith("torch") for name in early):
        from .frameworks.torch import torch_support

        torch_support.replace_early_imports()
    return True


class _Patch:
    """Hands a module that has just been imported to its adapters."""

    def __init__(self, adapters: dict[str, list[FrameworkAdapter]]) -> None:
        self._adapters = adapters

    def __call__(self, name: str, module: ModuleType) -> None:
        from . import probe_start

        context = probe_start.start()
        for adapter in self._adapters[name]:
            context.add_adapter(adapter)
            adapter.attach(context, name, module)


def _fail(trouble: Exception) -> None:
    """Writes an error of the probe into the box, or, if that fails, to standard error. It must not
    raise: an exception would abort the import of the user's framework."""
    try:
        from . import probe_start

        probe_start.start().fail(trouble)
    except Exception as second:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in _watches]
        if sys.stderr is not None and not sys.stderr.closed:
            reason = f"{type(second).__name__}: {second}"
            print(f"mgpu-doctor: this process is not watched: {reason}", file=sys.stderr)
