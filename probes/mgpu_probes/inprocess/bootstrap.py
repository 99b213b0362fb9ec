"""Installs the probe in this process: cheap, silent, and inert until torch or TensorFlow comes.

Every Python of a job passes through here, so this file and those that it
imports at its top import next to nothing.
"""

from __future__ import annotations

import os
import sys

from .framework_adapters import ADAPTERS, BOXES_VARIABLE
from .import_watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_HOOKS = {module: hook for adapter in ADAPTERS for module, hook in adapter.hooks.items()}
_watches: list[Watch] = []
_attached: set[str] = set()
"""Modules of hooks that the context of this process knows."""


def install() -> bool:
    """Watches for the frameworks and patches them as they are imported. False: nothing to do."""
    if _watches or not os.environ.get(BOXES_VARIABLE):
        return False
    watch = Watch(frozenset(_HOOKS), _patch, _failed)
    _watches.append(watch)
    sys.meta_path.insert(0, watch)
    if os.environ.get("RANK"):
        from . import probe_start

        probe_start.start()  # so that a rank that never gets as far as torch leaves its exception
    early = [name for name in _HOOKS if name in sys.modules]
    for name in early:
        watch.patch(name, sys.modules[name])
    if any(name.startswith("torch") for name in early):
        from .torch_hooks import torch_support

        torch_support.replace_early_imports()
    return True


def _patch(name: str, module: ModuleType) -> None:
    from importlib import import_module

    from . import probe_start
    from .probe_context import probe

    probe_start.start()
    hooks, function = _HOOKS[name]
    hook = import_module(f".{hooks}", __package__)
    if hooks not in _attached:
        _attached.add(hooks)
        attach = getattr(hook, "attach", None)
        if attach is not None:
            attach(probe)
    getattr(hook, function)(module)


def _failed(trouble: Exception) -> None:
    from .probe_context import probe

    probe.fail(trouble)
