"""Finds the function that the user names, and its framework."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from mgpu_doctor.analysis.memory.memory_plan import Framework

DEFAULT = "plan"
"""The function's default name."""
APART = (
    "put what runs under `if __name__ == '__main__':`, or write a small file with a function that "
    "builds the model (docs/plan.md) and name that"
)
RETURNS = "return model, batch and loss as in docs/plan.md"
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)\s+(torch|tensorflow|keras)\b", re.MULTILINE)
_MOST_SOURCE = 4 << 20
"""Characters of a file that are searched for imports."""


class TargetError(Exception):
    """The target cannot be planned; the message is one sentence that says what to do."""


class StepError(Exception):
    """The step could not be run or traced. `parameters`: of the model, if it was built."""

    def __init__(self, why: str, parameters: int | None) -> None:
        super().__init__(why)
        self.parameters = parameters


def detect_framework(target: str) -> Framework:
    """Returns the framework that the file imports, so that the other one need not be installed."""
    place = target.partition(":")[0]
    try:
        path = Path(place) if place.endswith(".py") else _find_file(place)
        source = path.read_text(encoding="utf-8", errors="replace")[:_MOST_SOURCE] if path else ""
    except OSError:
        source = ""
    imported = set(_IMPORTS.findall(source))
    return Framework.TENSORFLOW if imported and "torch" not in imported else Framework.TORCH


def find_function(target: str) -> Callable[[], Any]:
    """Returns the function at `module:function` or `script.py:function`. Raises TargetError."""
    place, _, name = target.partition(":")
    name = name or DEFAULT
    try:
        function = getattr(_import_place(place), name, None)
    except TargetError:
        raise
    except SystemExit as ended:
        why = f"{place} ends itself when it is imported (exit code {ended.code}), as scripts do"
        raise TargetError(f"{why} that read their arguments there: {APART}.") from None
    except ModuleNotFoundError as error:
        missing = error.name or "a module"
        if place == missing or place.startswith(f"{missing}."):
            why = f"there is no module {missing} here or among the installed ones"
            raise TargetError(f"{why}: name a script or a module, as module:NAME.") from None
        raise TargetError(
            f"{place} imports {missing}, which is missing: install it where the doctor is, or the "
            f"doctor where the job runs ({sys.executable} is asked)."
        ) from None
    except Exception as error:
        why = f"{place} cannot be imported ({describe_error(error)})"
        raise TargetError(f"{why}: {APART}.") from None
    if not callable(function):
        known = f"there is no function {name!r} in {place}"
        raise TargetError(f"{known}: name one as in {place}:FUNCTION; let it {RETURNS}.")
    return _check_arguments(function, f"{place}:{name}")


def describe_error(error: BaseException) -> str:
    """Returns an exception on one line."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first}".rstrip(": ")


def _find_file(module: str) -> Path | None:
    """Returns the file of a module, without importing it or its packages."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        inside = None if spec is None else spec.submodule_search_locations or []
        spec = PathFinder.find_spec(".".join(parts[:number]), inside)
        if spec is None:
            return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _import_place(place: str) -> ModuleType:
    if not place.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise TargetError(f"there is no file {place}: name a script or a module, as module:NAME.")
    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [place]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _check_arguments(function: Callable[..., Any], name: str) -> Callable[[], Any]:
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise TargetError(
            f"{name} takes arguments: name a function that takes none; let it {RETURNS}."
        ) from None
    except ValueError:
        pass  # a builtin has no signature
    return function
