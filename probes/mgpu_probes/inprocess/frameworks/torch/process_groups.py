"""Wraps joining and leaving the default process group, and lists the groups that this rank is
in."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

from ... import layout
from ...probe_context import ProbeContext
from . import flight_recorder_handlers
from .torch_support import wrap

probe: ProbeContext

_MOST = 16
_MOST_RANKS = 1024
"""Ranks of a group that are listed; a larger group that does not hold all ranks is left out."""
_found_groups: list[dict[str, Any]] = []


def patch(distributed_c10d: ModuleType) -> None:
    """Wraps the two functions. Making other groups is not wrapped: all of them are in one table of
    torch's, which is read when the process metadata is written."""
    wrap(distributed_c10d, "init_process_group", _init_begins, _init_ends)
    wrap(distributed_c10d, "destroy_process_group", _destroy_begins, _ignore)


def _init_begins(_: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    if not probe.adopt():
        return None
    rank, world = kwargs.get("rank"), kwargs.get("world_size")
    probe.join(
        rank if isinstance(rank, int) else -1,
        world if isinstance(world, int) else -1,
    )
    return True


def _init_ends(_: bool, __: Any) -> None:
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
    probe.objects.backend = str(dist.get_backend())
    probe.identify(dist.get_rank(), dist.get_world_size())
    flight_recorder_handlers.listen()
    probe.joined(dist.get_rank(), dist.get_world_size())


def _destroy_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    # The sequence number of a destroyed group must not be read.
    group = args[0] if args else kwargs.get("group")
    if probe.on and (group is None or group is torch.distributed.group.WORLD):
        probe.event(layout.LEFT, probe.clock())
        _read_groups()
        probe.sequence = int
    return None


def _ignore(_: Any, __: Any) -> None:
    """Nothing is left to do after the call."""


def _read_groups() -> None:
    """Reads the groups that this rank is in from torch's table; the default group is listed
    first."""
    dist = torch.distributed
    world = getattr(dist.distributed_c10d, "_world", None)
    table = getattr(world, "pg_group_ranks", None)
    if not isinstance(table, dict) or not dist.is_initialized():
        return
    default, everybody, own_rank = dist.group.WORLD, dist.get_world_size(), dist.get_rank()
    groups: list[dict[str, Any]] = [{"name": "default", "ranks": None}]
    for group, ranks in list(table.items()):
        if group is default or own_rank not in ranks or len(groups) >= _MOST:
            continue
        everywhere = len(ranks) == everybody
        if everywhere or len(ranks) <= _MOST_RANKS:
            groups.append({"name": _name(group), "ranks": None if everywhere else sorted(ranks)})
    _found_groups[:] = groups


def count_issued() -> int:
    """How many collectives the groups of this rank have issued so far, from Python or C++."""
    distributed = getattr(torch.distributed, "distributed_c10d", None)
    world = getattr(distributed, "_world", None)
    total = 0
    for group in list(getattr(world, "pg_map", ())):
        sequence = getattr(group, "_get_sequence_number_for_group", None)
        if sequence is not None:
            with suppress(RuntimeError):  # a backend without sequence numbers
                total += sequence()
    return total


def _name(group: Any) -> str | None:
    described = getattr(group, "group_desc", "")
    description = described if described and described != "undefined" else None
    return str(description or getattr(group, "group_name", None) or "")[:100] or None


def _describe() -> dict[str, Any]:
    _read_groups()
    return {"groups": list(_found_groups)} if _found_groups else {}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
    context.add_reset(_found_groups.clear)
