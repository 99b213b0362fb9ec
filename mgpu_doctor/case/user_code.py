"""Which files are of the user's own code."""

from __future__ import annotations

from functools import lru_cache

_INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python3.", "/mgpu_probes/")
_GENERATED = ("<", "?")


@lru_cache(4096)  # a memory snapshot asks a million times about some hundred files
def is_user_code(file: str) -> bool:
    """Whether it is no installed package, standard library, generated code or probe of ours."""
    return bool(file) and not (
        file.startswith(_GENERATED) or any(mark in file for mark in _INSTALLED)
    )
