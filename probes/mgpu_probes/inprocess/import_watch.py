"""Calls a function when a watched module has just been imported, and leaves no trace on the
module."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Watch:
    """A finder for `sys.meta_path`. For the watched names it returns what the other finders return,
    with a loader that calls back once."""

    def __init__(
        self,
        names: Collection[str],
        patch: Callable[[str, ModuleType], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._names = names
        self._patch = patch
        self._failed = failed
        self._finding: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that another finder returns, its loader prepared; None for names not watched."""
        if name not in self._names or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = self._spec(name, path, target)
        finally:
            self._finding.discard(name)
        if spec is not None and spec.loader is not None:
            try:
                self._arm(name, spec.loader)
            except Exception as trouble:
                self._failed(trouble)
        return spec

    def _spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _arm(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Restored before the module runs, so that it sees the unchanged loader.
            del loader.exec_module
            execute(module)
            self.patch(name, module)

        loader.exec_module = exec_module

    def patch(self, name: str, module: ModuleType) -> None:
        """Patches a module; an error is reported, never raised."""
        try:
            self._patch(name, module)
        except Exception as trouble:
            self._failed(trouble)
