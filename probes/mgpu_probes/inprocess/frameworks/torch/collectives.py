"""Collectives, sends, receives and waits that Python calls: this rank stands there for others."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from ... import layout
from ...probe_context import ProbeContext
from ...step_engine import Steps
from . import autograd, device_events, process_groups
from .call_sites import Place, Places, tensor_of
from .torch_support import wrap

probe: ProbeContext

_MOST_RANKS = 64
"""Per direction, in the process metadata."""


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
        elif type(peer) is int and len(self._ranks) < _MOST_RANKS:
            self._ranks.add(peer)

    def _saw_in_group(self, group: Any, peer: Any) -> None:
        seen = (id(group), peer)
        if seen in self._seen or type(peer) is not int or len(self._seen) >= _MOST_RANKS:
            return
        self._seen.add(seen)
        dist = torch.distributed
        self._ranks.add(peer if group is None else dist.get_global_rank(group, peer))

    def ranks(self) -> list[int]:
        """The ranks so far."""
        return sorted(self._ranks)

    def forget(self) -> None:
        """In a forked child: the parent's peers are not the child's."""
        self._ranks.clear()
        self._seen.clear()


sends_to, receives_from = Peers("dst"), Peers("src")


BLOCKING = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "all_gather",
    "all_gather_single",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "gather",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "all_gather_object",
    "gather_object",
)
RECEIVING = ("recv", "irecv", "recv_object_list")
SENDING = ("send", "isend", "send_object_list")
"""A batch of them (`batch_isend_irecv`) calls `isend` and `irecv` itself."""
SETTING_UP = (
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "scatter_object_list",
    "barrier",
    "monitored_barrier",
)
"""Also called once a parameter or object before training (`parallelize_module` scatters each): no
sign of a loop's turn."""

WAITING = ("wait", "synchronize", "block_current_stream")
"""Methods of the handle of a call, the last of torch 2.9."""

_RECURS = 8
"""Calls from one place by which it is taken for one of a loop."""

_SITE_WORD = layout.NOW_SITE // 8
_SEQUENCE_WORD = layout.NOW_SEQUENCE // 8


def patch(distributed_c10d: ModuleType) -> None:
    """Wraps the functions before `torch.distributed` re-exports them."""
    for name in BLOCKING:
        wrap(distributed_c10d, name, Call(Places(name)), called)
    for name in RECEIVING:
        wrap(distributed_c10d, name, Call(Places(name), peers=receives_from), called)
    for name in SENDING:
        wrap(distributed_c10d, name, Call(Places(name), sends=True, peers=sends_to), called)
    for name in SETTING_UP:
        wrap(distributed_c10d, name, Call(Places(name, recurs=False)), called)
    work = getattr(distributed_c10d, "Work", None)
    if work is not None:
        for name in WAITING:
            wrap(work, name, Call(Places(name, waits=True)), called)
    process_groups.patch(distributed_c10d)


class Call:
    """The beginning of one kind of call. `peers` learns whom it is with."""

    def __init__(
        self,
        places: Places,
        *,
        sends: bool = False,
        peers: Peers | None = None,
        frames_up: int = 2,
    ) -> None:
        """`frames_up`: the caller's frame from here on."""
        self.places = places
        self.frames_up = frames_up
        self.begins = _sends if sends else Steps.call_begins
        self.peers = peers

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place | None:
        if not probe.mine() or probe.ledger.phase == layout.WAIT:
            return None
        place = self.places.of(sys._getframe(self.frames_up))
        if place.count in {0, _RECURS}:
            self._look(place, args, kwargs)
        if self.peers is not None:
            self.peers.saw(args, kwargs)
        if probe.box is not None:
            words = probe.ledger.words
            words[_SITE_WORD] = place.word or place.spell()
            words[_SEQUENCE_WORD] = probe.sequence()
        if probe.device_timer is not None:
            device_events.communicates()
        place.began = now = probe.clock()
        probe.mark(self.begins, now)
        return place

    def _look(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What is moved, by the first call; where, if the place recurs in a loop that runs no
        backward pass: that would show where the training computes."""
        tensor = tensor_of(args, kwargs)
        if tensor is None:
            return
        if probe.device_timer is not None:
            device_events.communicates_on(tensor.device)
        if not place.count:
            place.elements = tensor.numel()
        elif self.places.recurs and not autograd.this.passes:
            device_events.time_on(tensor.device)


def called(place: Place, _: Any) -> None:
    now = probe.clock()
    place.count += 1
    place.nanoseconds += now - place.began
    probe.mark(place.returned, now)
    probe.ledger.words[_SITE_WORD] = 0


def _sends(steps: Steps, now: int) -> None:
    steps.call_begins(now, sends=True)


def _sends_to_others() -> bool:
    return bool(sends_to.ranks())


def _peers() -> dict[str, Any]:
    return {"sends_to": sends_to.ranks(), "receives_from": receives_from.ranks()}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.sends = _sends_to_others
    context.add_metadata(_peers)
    context.add_reset(sends_to.forget)
    context.add_reset(receives_from.forget)
