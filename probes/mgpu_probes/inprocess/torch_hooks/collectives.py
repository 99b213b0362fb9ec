"""Collectives, sends and receives that Python calls, and the joining and leaving of a group."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from .. import births, layout
from ..pieces import Call
from ..rank import probe
from ..steps import Steps
from ..stride import Mark
from .common import wrap

BLOCKING = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "all_gather",
    "all_gather_single",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "all_gather_object",
    "gather_object",
    "recv",
    "recv_object_list",
)
SENDING = ("send", "isend", "send_object_list")
SETTING_UP = (
    "broadcast",
    "broadcast_object_list",
    "scatter_object_list",
    "barrier",
    "monitored_barrier",
)
"""Also called once a parameter or object before training: no sign of a loop's turn."""

SITE_WORD = layout.NOW_SITE // 8
SEQUENCE_WORD = layout.NOW_SEQUENCE // 8
_FRAMES_CLIMBED = 24
"""In search of a caller outside torch."""
_SITES_KEPT = 1024

_torch_folder = os.path.dirname(torch.__file__) + os.sep
_sites: dict[tuple[CodeType, int], tuple[str, int]] = {}
_words: dict[Call, int] = {}
_returned: dict[tuple[Call, bool], Mark] = {}
"""The mark at the end of a call."""
_CALLS, _WAITED = Steps.call_begins, Steps.call_ends


def patch(distributed_c10d: ModuleType) -> None:
    """Wraps the functions before `torch.distributed` re-exports them."""
    for name in BLOCKING:
        wrap(distributed_c10d, name, _Call(name), _called)
    for name in SENDING:
        wrap(distributed_c10d, name, _Call(name, sends=True), _called)
    for name in SETTING_UP:
        wrap(distributed_c10d, name, _Call(name, recurs=False), _called)
    wrap(distributed_c10d, "init_process_group", _joining, _joined)
    wrap(distributed_c10d, "destroy_process_group", _leaving, _left)
    work = getattr(distributed_c10d, "Work", None)
    if work is not None:
        wrap(work, "wait", _waiting, _waited)


class _Call:
    """The beginning of one kind of call."""

    def __init__(self, name: str, *, sends: bool = False, recurs: bool = True) -> None:
        self.name = name
        self.sends = sends
        self.recurs = recurs

    def __call__(self, _: tuple[Any, ...], __: dict[str, Any]) -> tuple[Call, bool] | None:
        if not probe.mine() or probe.ledger.phase == layout.WAIT:
            return None
        call = (*_site(sys._getframe(2)), self.name)
        words = probe.ledger.words
        if probe.box is not None:
            words[SITE_WORD] = _words.get(call) or _word(call)
            words[SEQUENCE_WORD] = probe.sequence()
        probe.stride.mark(_sends if self.sends else _CALLS, probe.clock())
        return call, self.recurs


def _called(token: tuple[Call, bool], _: Any) -> None:
    now = probe.clock()
    probe.stride.mark(_returned.get(token) or _returns(*token), now)
    probe.ledger.words[SITE_WORD] = 0


def _waiting(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    if not probe.mine() or probe.ledger.phase == layout.WAIT:
        return None
    probe.stride.mark(_CALLS, probe.clock())
    return True


def _waited(_: bool, __: Any) -> None:
    probe.stride.mark(_WAITED, probe.clock())


def _sends(steps: Steps, now: int) -> None:
    steps.call_begins(now, sends=True)


def _returns(call: Call, recurs: bool) -> Mark:
    def returned(steps: Steps, now: int) -> None:
        steps.call_ends(now, call, recurs=recurs)

    if len(_returned) >= _SITES_KEPT:
        _returned.clear()
    _returned[call, recurs] = returned
    return returned


def _site(frame: FrameType | None) -> tuple[str, int]:
    """File and line of the first caller outside torch."""
    for _ in range(_FRAMES_CLIMBED):
        if frame is None:
            break
        key = (frame.f_code, frame.f_lasti)
        known = _sites.get(key)
        if known is not None:
            return known
        file = frame.f_code.co_filename
        if not file.startswith(_torch_folder) and not file.endswith("(importlib._bootstrap)"):
            if len(_sites) >= _SITES_KEPT:
                _sites.clear()
            _sites[key] = site = (file, frame.f_lineno)
            return site
        frame = frame.f_back
    return ("?", 0)


def _word(call: Call) -> int:
    if probe.box is None:
        return 0
    file, line, name = call
    _words[call] = word = probe.box.site(f"{name} {file}:{line}")
    return word


def _joining(_: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    if not probe.adopt():
        return None
    _words.clear()
    rank, world = kwargs.get("rank"), kwargs.get("world_size")
    probe.join(
        rank if isinstance(rank, int) else -1,
        world if isinstance(world, int) else -1,
    )
    return True


def _joined(_: bool, __: Any) -> None:
    dist = torch.distributed
    if not dist.is_initialized():
        return
    group = dist.group.WORLD
    sequence = getattr(group, "_get_sequence_number_for_group", None)
    if sequence is not None:
        try:
            sequence()
        except RuntimeError:  # a backend without sequence numbers
            sequence = None
    probe.sequence = sequence or int
    births.saw_group(str(dist.get_backend()))
    probe.joined(dist.get_rank(), dist.get_world_size())


def _leaving(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    # The group must not be asked for its sequence number once it is gone.
    group = args[0] if args else kwargs.get("group")
    if probe.on and (group is None or group is torch.distributed.group.WORLD):
        probe.sequence = int
    return None


def _left(_: Any, __: Any) -> None:
    """Nothing follows."""
