"""Bytes that training holds from step to step: weights, their gradients and the optimizer's state.

Sizes alone are read: nothing is waited for on a device, and no framework is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MOST = 4096
"""Parameters; of more nothing is told, as all of them are walked through (some µs each)."""


def holdings(optimizers: Iterable[Any]) -> dict[str, Any]:
    """For the birth certificate: of all parameters of these optimizers, of each once. `on`: the
    kind of device that they are on; what is elsewhere (offloaded) is not counted."""
    weights = gradients = states = 0
    on: str | None = None
    seen: set[int] = set()
    for one in optimizers:
        parameters = [p for group in _groups(one) for p in group.get("params", ())]
        if len(parameters) + len(seen) > _MOST:
            return {}
        for parameter in parameters:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                on = on or _kind(parameter)
                size = _size(parameter, on)
                weights += size
                if getattr(parameter, "requires_grad", False):
                    gradients += _size(getattr(parameter, "grad", None), on) or size
        if parameters:
            for state in list((getattr(one, "state", None) or {}).values()):
                kept = state.values() if isinstance(state, dict) else ()
                states += sum(_size(tensor, on) for tensor in kept)
    if not seen or on is None:
        return {}
    sizes = {"weights": weights, "gradients": gradients, "optimizer": states}
    return {"memory_parts": {"on": on, **sizes}}


def _groups(one: Any) -> list[Any]:
    groups = getattr(one, "param_groups", None)
    return groups if isinstance(groups, list) else []


def _kind(tensor: Any) -> str | None:
    kind = getattr(getattr(tensor, "device", None), "type", None)
    return kind if isinstance(kind, str) else None


def _size(tensor: Any, on: str | None) -> int:
    """Of this rank's part of a tensor; 0: it is none, or elsewhere."""
    local = getattr(tensor, "_local_tensor", tensor)
    if not hasattr(local, "element_size") or not hasattr(local, "numel") or _kind(local) != on:
        return 0
    return int(local.numel()) * int(local.element_size())
