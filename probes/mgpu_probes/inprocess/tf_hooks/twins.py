"""Functions whose graphs hold stamps, and the like of each without them: for XLA, which compiles no
such operation, and for who asks for a graph to convert, count or export it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

_twins: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""By the functions whose graphs hold stamps; None until it is asked for."""


def stamped(function: Any) -> None:
    """A graph of it holds stamps, or calls one that does."""
    _twins.setdefault(function, None)


def plain(function: Any) -> Any:
    """The function itself where it has no stamps; else one that is traced again, without."""
    if function not in _twins or not hasattr(function, "_clone"):
        return function
    if _twins[function] is None:
        _twins[function] = function._clone(None)
    return _twins[function]
