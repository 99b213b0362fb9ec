"""Loads the adapters of frameworks: each folder of `frameworks` is one; its `__init__` has
`ADAPTER`.

Every Python process of a job imports these files, so they import only each other. An adapter
imports what it needs in `attach`, when its framework has been imported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import ModuleType
    from typing import Any

    from .probe_context import FrameworkAdapter, ProbeContext


class HookTable:
    """An adapter whose hooks are functions in modules of its folder.

    A module of hooks declares `probe: ProbeContext`, which is set before its first hook runs, and
    may define `attach(context)`, called once: there it adds to the process metadata.
    """

    def __init__(
        self, name: str, package: str, hooks: Mapping[str, Mapping[str, str]], metadata: str = ""
    ) -> None:
        """`hooks`: for each module of hooks, the framework's modules and the function that patches
        each. `metadata`: the module of hooks whose `describe` describes the framework."""
        self.name = name
        self._package = package
        self._metadata = metadata
        self._hooks = {
            watched: (module, function)
            for module, functions in hooks.items()
            for watched, function in functions.items()
        }
        self.modules: Collection[str] = self._hooks.keys()

    def attach(self, context: ProbeContext, name: str, module: ModuleType) -> None:
        """Calls the hook of this module."""
        hooks, function = self._hooks[name]
        getattr(self._load(context, hooks), function)(module)

    def describe(self, context: ProbeContext) -> dict[str, Any]:
        """What `describe` of the metadata module returns; empty without such a module."""
        if not self._metadata:
            return {}
        described: dict[str, Any] = self._load(context, self._metadata).describe()
        return described

    def _load(self, context: ProbeContext, hooks: str) -> ModuleType:
        from importlib import import_module

        name = f"{self._package}.{hooks}"
        loaded = sys.modules.get(name)
        if loaded is None or getattr(loaded, "probe", None) is not context:
            loaded = import_module(name)
            give_context(context)
        return loaded


def give_context(context: ProbeContext) -> None:
    """Sets `probe` in all modules of hooks that have been imported, and calls their `attach`."""
    folder = f"{__package__}.frameworks."
    for name, module in list(sys.modules.items()):
        if not name.startswith(folder) or hasattr(module, "__path__"):
            continue
        if getattr(module, "probe", None) is not context:
            module.probe = context  # type: ignore[attr-defined]
            attach = getattr(module, "attach", None)
            if attach is not None:
                attach(context)


def load_adapters() -> list[FrameworkAdapter]:
    """The adapters of all folders, by name."""
    from importlib import import_module

    package = import_module(f"{__package__}.frameworks")
    names = {
        folder.name
        for path in package.__path__
        for folder in os.scandir(path)
        if os.path.exists(os.path.join(folder.path, "__init__.py"))
    }
    return [import_module(f"{package.__name__}.{name}").ADAPTER for name in sorted(names)]
