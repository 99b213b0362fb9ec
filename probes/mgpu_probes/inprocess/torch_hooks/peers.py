"""Point to point: to whom this rank sends, and from whom it receives."""

from __future__ import annotations

from typing import Any

import torch

from .. import births
from ..rank import probe

_TOLD = 64
"""Ranks in the birth certificate, each way."""


class Peers:
    """The ranks named by one kind of call, in `argument` or, within a group, `group_argument`."""

    def __init__(self, argument: str) -> None:
        self._argument = argument
        self._in_group = f"group_{argument}"
        self._ranks: set[int] = set()
        self._seen: set[tuple[int, int]] = set()

    def saw(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call with these arguments, the second of which is the peer."""
        peer = args[1] if len(args) > 1 else kwargs.get(self._argument)
        if peer is None:
            self._saw_in_group(kwargs.get("group"), kwargs.get(self._in_group))
        elif type(peer) is int and len(self._ranks) < _TOLD:
            self._ranks.add(peer)

    def _saw_in_group(self, group: Any, peer: Any) -> None:
        seen = (id(group), peer)
        if seen in self._seen or type(peer) is not int or len(self._seen) >= _TOLD:
            return
        self._seen.add(seen)
        dist = torch.distributed
        self._ranks.add(peer if group is None else dist.get_global_rank(group, peer))

    def told(self) -> list[int]:
        """The ranks so far."""
        return sorted(self._ranks)

    def forget(self) -> None:
        """In a forked child: the parent's peers are not the child's."""
        self._ranks.clear()
        self._seen.clear()


sends_to, receives_from = Peers("dst"), Peers("src")

births.sends = lambda: bool(sends_to.told())
births.parts.append(
    lambda: {"sends_to": sends_to.told(), "receives_from": receives_from.told()},
)
probe.on_open += (sends_to.forget, receives_from.forget)
