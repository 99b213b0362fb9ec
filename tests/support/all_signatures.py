"""All signatures, and which of them fit a line."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from mgpu_doctor import signatures
from mgpu_doctor.signatures.signature import Signature

CONSOLE = Path(__file__).parents[1] / "recorded" / "console"


def _all_families() -> tuple[Signature, ...]:
    """The signatures of every module of the package, catalogued or not."""
    modules = (
        importlib.import_module(f"{signatures.__name__}.{module.name}")
        for module in pkgutil.iter_modules(signatures.__path__)
        if module.name != "known_signatures"
    )
    return tuple(one for module in modules for one in getattr(module, "SIGNATURES", ()))


EVERY = _all_families()


def _fitting(line: str) -> list[Signature]:
    """Those that recognise a line, by needle and pattern as the reader of logs does."""
    return [one for one in EVERY if one.needle in line and re.search(one.pattern, line)]


def found(line: str) -> list[str]:
    return [one.id for one in _fitting(line)]


def codes_of(line: str) -> list[str]:
    return [one.code for one in _fitting(line)]
