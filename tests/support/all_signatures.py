"""All signatures of the package, and which of them match a line."""

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
    return tuple(signature for module in modules for signature in getattr(module, "SIGNATURES", ()))


ALL_SIGNATURES = _all_families()


def _matching(line: str) -> list[Signature]:
    """The signatures that match a line, by needle and pattern, as the log scanner matches them."""
    return [
        signature
        for signature in ALL_SIGNATURES
        if signature.needle in line and re.search(signature.pattern, line)
    ]


def ids_of(line: str) -> list[str]:
    return [signature.id for signature in _matching(line)]


def codes_of(line: str) -> list[str]:
    return [signature.code for signature in _matching(line)]
