"""Where torch was imported before the probe: other modules hold the functions under their names."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from .common import replaced


def spread() -> None:
    """Puts the wrapped functions where the original ones had been imported to."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict:
            continue
        for name, value in list(names.items()):
            if type(value) is FunctionType and value in replaced:
                names[name] = replaced[value]
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    table = getattr(functional, "traceable_collective_remaps", None)
    if type(table) is dict:  # torch.compile knows collectives by the function's identity
        for original in [function for function in table if function in replaced]:
            table[replaced[original]] = table.pop(original)
