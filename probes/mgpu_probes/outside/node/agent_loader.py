"""Imports modules from memory: the beginning of the program that is sent to a host.

It is executed as text, before anything of this package can be imported there."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import zlib
from collections.abc import Sequence
from types import ModuleType


class MemoryImporter(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds modules by their names among texts of Python."""

    def __init__(self, packed: bytes) -> None:
        texts: dict[str, str] = json.loads(zlib.decompress(packed))
        self._texts = texts

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - names are complete
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._texts:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def is_package(self, fullname: str) -> bool:
        return any(name.startswith(fullname + ".") for name in self._texts)

    def get_source(self, fullname: str) -> str:
        return self._texts[fullname]


def run_agent(packed: bytes, agent: str) -> None:
    """Runs an agent, a module with a `main`, among these modules."""
    sys.meta_path.insert(0, MemoryImporter(packed))
    importlib.import_module(agent).main()
