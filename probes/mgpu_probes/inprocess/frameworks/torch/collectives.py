"""Wraps the functions of `torch.distributed` in which a rank waits for others: collectives, sends,
receives, and waits for their handles.

Each call is marked as a wait and counted per call site, and its site is shown in the now cell of
the box while it blocks. Collectives of compiled code: `compiled_collectives`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Protocol

import torch

from ... import layout
from ...probe_context import ProbeContext
from ...step_engine import Steps
from . import autograd, device_events, process_groups
from .call_sites import CallSite, CallSites, tensor_of
from .torch_support import wrap

probe: ProbeContext

_MOST_RANKS = 64
"""Peers per direction in the process metadata."""


class NotesCalls(Protocol):
    """Collects the other ranks of calls."""

    def note_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...


class Peers:
    """The peers of one kind of call. `argument` is the name of the parameter that holds the peer's
    global rank; `group_` + `argument` is the one that holds its rank within a group."""

    def __init__(self, argument: str) -> None:
        self._argument = argument
        self._in_group = f"group_{argument}"
        self._ranks: set[int] = set()
        self._seen: set[tuple[int, int]] = set()

    def note_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the peer of a call with these arguments; if positional, it is the second."""
        peer = args[1] if len(args) > 1 else kwargs.get(self._argument)
        if peer is None:
            self._note_group_peer(kwargs.get("group"), kwargs.get(self._in_group))
        elif type(peer) is int and len(self._ranks) < _MOST_RANKS:
            self._ranks.add(peer)

    def note_rank(self, rank: int) -> None:
        """Notes this global rank."""
        if len(self._ranks) < _MOST_RANKS:
            self._ranks.add(rank)

    def _note_group_peer(self, group: Any, peer: Any) -> None:
        seen = (id(group), peer)
        if seen in self._seen or type(peer) is not int or len(self._seen) >= _MOST_RANKS:
            return
        self._seen.add(seen)
        dist = torch.distributed
        self._ranks.add(peer if group is None else dist.get_global_rank(group, peer))

    def ranks(self) -> list[int]:
        """The global ranks of all peers so far."""
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
"""`batch_isend_irecv` needs no entry: it calls `isend` and `irecv`."""
SETTING_UP = (
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "scatter_object_list",
    "barrier",
    "monitored_barrier",
)
"""Also called before training, once per parameter or object (`parallelize_module` scatters each),
so that their recurrence is no sign of a training loop."""

WAITING = ("wait", "synchronize", "block_current_stream")
"""Methods of a call's handle (`Work`); `block_current_stream` is new in torch 2.9."""

_RECURS = 8
"""Calls from one site after which it counts as part of a loop."""

_SITE_WORD = layout.NOW_SITE // 8
_SEQUENCE_WORD = layout.NOW_SEQUENCE // 8


def patch(distributed_c10d: ModuleType) -> None:
    """Wraps the functions before `torch.distributed` re-exports them."""
    for name in BLOCKING:
        wrap(distributed_c10d, name, Call(CallSites(name)), call_ends)
    for name in RECEIVING:
        wrap(distributed_c10d, name, Call(CallSites(name), peers=receives_from), call_ends)
    for name in SENDING:
        wrap(distributed_c10d, name, Call(CallSites(name), sends=True, peers=sends_to), call_ends)
    for name in SETTING_UP:
        wrap(distributed_c10d, name, Call(CallSites(name, recurs=False)), call_ends)
    work = getattr(distributed_c10d, "Work", None)
    if work is not None:
        for name in WAITING:
            wrap(work, name, Call(CallSites(name, waits=True)), call_ends)
    process_groups.patch(distributed_c10d)


class Call:
    """The hook before one kind of call. `peers` collects the other ranks of point-to-point
    calls."""

    def __init__(
        self,
        places: CallSites,
        *,
        sends: bool = False,
        peers: NotesCalls | None = None,
        frames_up: int = 2,
    ) -> None:
        """`frames_up`: how many frames above `__call__` the caller of the wrapped function is."""
        self.places = places
        self.frames_up = frames_up
        self.begins = _send_begins if sends else Steps.call_begins
        self.peers = peers

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSite | None:
        if not probe.mine() or probe.ledger.phase == layout.WAIT:
            return None
        place = self.places.of(sys._getframe(self.frames_up))
        if place.count in {0, _RECURS}:
            self._note_tensor(place, args, kwargs)
        if self.peers is not None:
            self.peers.note_call(args, kwargs)
        if probe.box is not None:
            words = probe.ledger.words
            words[_SITE_WORD] = place.word or place.site_word()
            words[_SEQUENCE_WORD] = probe.sequence()
        if probe.device_timer is not None:
            device_events.communicates()
        place.began = now = probe.clock()
        probe.mark(self.begins, now)
        return place

    def _note_tensor(self, place: CallSite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the size of the tensor at a site's first call. If the site recurs in a loop without
        backward passes, times the tensor's device: nothing else shows where such a loop
        computes."""
        tensor = tensor_of(args, kwargs)
        if tensor is None:
            return
        if probe.device_timer is not None:
            device_events.communicates_on(tensor.device)
        if not place.count:
            place.elements = tensor.numel()
        elif self.places.recurs and not autograd.this.passes:
            device_events.time_on(tensor.device)


def call_ends(place: CallSite, _: Any) -> None:
    """The hook after a call: adds its duration to its site, and sets the mark of its end."""
    now = probe.clock()
    place.count += 1
    place.nanoseconds += now - place.began
    probe.mark(place.returned, now)
    probe.ledger.words[_SITE_WORD] = 0


def _send_begins(steps: Steps, now: int) -> None:
    steps.call_begins(now, sends=True)


def _has_sent() -> bool:
    return bool(sends_to.ranks())


def _describe() -> dict[str, Any]:
    return {"sends_to": sends_to.ranks(), "receives_from": receives_from.ranks()}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.sends = _has_sent
    context.add_metadata(_describe)
    context.add_reset(sends_to.forget)
    context.add_reset(receives_from.forget)
