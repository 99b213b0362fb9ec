"""Which source files are the user's own code: not installed, not Python's, not the probe's."""

from __future__ import annotations

import re
from functools import lru_cache

INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/")
STANDARD_LIBRARY = re.compile(r"(?:^|/)lib(?:64)?/python3[\d.t]*(?:\.zip)?/")
TORCH = re.compile(
    r"(?:^|/)(?=torch/(?:_\w+|autograd|cuda|distributed|fx|multiprocessing|nn|optim|utils)/)"
)
"""A torch built from source may be anywhere; py-spy's short names begin with this."""
PROBE = "/mgpu_probes/"
_GENERATED = ("<", "…", "?")
_STANDARD_MODULES = frozenset(
    f"{name}.py"
    for name in ("threading", "queue", "socket", "ssl", "selectors", "subprocess", "inspect", "ast")
)
"""Python's own modules, as they appear if only a file's name is known."""


@lru_cache(4096)  # a memory snapshot needs it a million times for some hundred files
def is_user_code(file: str) -> bool:
    """Whether a source file is the user's own code. False for installed packages, the standard
    library, generated code, programs without an extension (`bin/torchrun`) and the probe."""
    if file.startswith(_GENERATED) or "." not in file.rpartition("/")[2] or PROBE in file:
        return False
    if any(known.search(file) for known in (INSTALLED, STANDARD_LIBRARY, TORCH)):
        return False
    return "/" in file or file not in _STANDARD_MODULES
