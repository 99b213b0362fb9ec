"""The parts of a device in a recording's line as typed facts, each bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

from mgpu_doctor.case.files import Json, moment, number, text, whole
from mgpu_doctor.case.gpu import (
    DeviceProcess,
    Ecc,
    MigInstance,
    NvLink,
    Pcie,
    Topology,
    XidEvent,
)

MOST_LINKS = 64
MOST_KINDS = 16
MOST_INSTANCES = 64
MOST_EVENTS = 256
MOST_PID = 1 << 22
MOST_XID = 1 << 16
_KINDS = ("compute", "graphics", "mps")
_REMOTES = ("gpu", "switch", "cpu")
_LEVELS = frozenset({"SELF", "NVL", "PIX", "PXB", "PHB", "NODE", "SYS"})
_REACHES = frozenset({"OK", "CNS", "GNS", "TNS", "DR", "NS"})
_UNKNOWN = "?"


def is_list(value: Json) -> TypeGuard[list[Json]]:
    return isinstance(value, list)


def share(value: Json, most: float = 1.0) -> float | None:
    """0..1, or up to `most`."""
    known = number(value)
    return known if known is not None and 0 <= known <= most else None


def pcie(entry: Json) -> Pcie | None:
    if not isinstance(entry, dict):
        return None
    return Pcie(
        generation=whole(entry.get("generation"), 0, 99),
        width=whole(entry.get("width"), 0, 99),
        generation_most=whole(entry.get("generation_most"), 0, 99),
        width_most=whole(entry.get("width_most"), 0, 99),
        sent=number(entry.get("sent")),
        received=number(entry.get("received")),
        replays=whole(entry.get("replays")),
    )


def nvlinks(entries: Json, kinds: Json = None) -> tuple[NvLink, ...]:
    """`kinds`: counters that are 0 where a link does not tell them."""
    found: list[NvLink] = []
    named = kinds[:MOST_KINDS] if is_list(kinds) else []
    known = [kind for one in named if (kind := text(one, 40)) is not None]
    for entry in entries[:MOST_LINKS] if is_list(entries) else ():
        link = whole(entry.get("link"), 0, 1 << 16) if isinstance(entry, dict) else None
        if link is not None and isinstance(entry, dict):
            up, remote = entry.get("up"), entry.get("remote")
            found.append(
                NvLink(
                    link=link,
                    up=up if isinstance(up, bool) else None,
                    remote=remote if isinstance(remote, str) and remote in _REMOTES else None,
                    errors=_counters(entry.get("errors"), known),
                )
            )
    return tuple(found)


def ecc(entry: Json) -> Ecc | None:
    if not isinstance(entry, dict):
        return None
    return Ecc(
        corrected=whole(entry.get("corrected")),
        uncorrected=whole(entry.get("uncorrected")),
        corrected_ever=whole(entry.get("corrected_ever")),
        uncorrected_ever=whole(entry.get("uncorrected_ever")),
        remapped=whole(entry.get("remapped")),
        pending=_flag(entry.get("pending")),
        failed=_flag(entry.get("failed")),
    )


def instances(entries: Json, most_pids: int) -> tuple[MigInstance, ...]:
    return tuple(
        MigInstance(
            uuid=text(entry.get("uuid"), 100),
            gpu_instance=whole(entry.get("gpu_instance"), 0, 1 << 16),
            compute_instance=whole(entry.get("compute_instance"), 0, 1 << 16),
            memory_used=whole(entry.get("memory_used")),
            memory_total=whole(entry.get("memory_total")),
            pids=_pids(entry.get("pids"), most_pids),
        )
        for entry in (entries[:MOST_INSTANCES] if is_list(entries) else ())
        if isinstance(entry, dict)
    )


def processes(entries: Json, most: int) -> tuple[DeviceProcess, ...]:
    found: list[DeviceProcess] = []
    for entry in entries[:most] if is_list(entries) else ():
        pid = whole(entry.get("pid"), 1, MOST_PID) if isinstance(entry, dict) else None
        if pid is not None and isinstance(entry, dict):
            kind = entry.get("kind")
            found.append(
                DeviceProcess(
                    pid=pid,
                    memory=whole(entry.get("memory")),
                    kind=kind if isinstance(kind, str) and kind in _KINDS else "compute",
                )
            )
    return tuple(found)


def xid_events(entries: Json) -> tuple[XidEvent, ...]:
    found: list[XidEvent] = []
    for entry in entries[:MOST_EVENTS] if is_list(entries) else ():
        if isinstance(entry, dict):
            at, xid = moment(entry.get("at")), whole(entry.get("number"), 0, MOST_XID)
            if at is not None and xid is not None:
                bus_id, logged = text(entry.get("bus_id"), 40), entry.get("logged") is True
                found.append(XidEvent(at, whole(entry.get("index")), xid, bus_id, logged))
    return tuple(found)


def topology(entry: Json, most: int) -> Topology | None:
    """Square tables of the same size, or nothing."""
    if not isinstance(entry, dict):
        return None
    levels = _table(entry.get("levels"), _LEVELS, most)
    peer = _table(entry.get("peer"), _REACHES, most)
    if levels is None or peer is None or len(levels) != len(peer):
        return None
    return Topology(levels, peer)


def _table(rows: Json, known: frozenset[str], most: int) -> tuple[tuple[str, ...], ...] | None:
    if not is_list(rows) or len(rows) > most:
        return None
    found = []
    for row in rows:
        if not is_list(row) or len(row) != len(rows):
            return None
        found.append(tuple(_known(cell, known) for cell in row))
    return tuple(found)


def _known(cell: Any, known: frozenset[str]) -> str:
    return cell if isinstance(cell, str) and cell in known else _UNKNOWN


def _counters(entries: Json, kinds: Iterable[str]) -> tuple[tuple[str, int], ...]:
    found = dict.fromkeys(kinds, 0)
    for entry in entries[:MOST_KINDS] if is_list(entries) else ():
        if is_list(entry) and len(entry) == 2:
            kind, count = text(entry[0], 40), whole(entry[1])
            if kind is not None and count is not None:
                found[kind] = count
    return tuple(found.items())


def _pids(entries: Json, most: int) -> tuple[int, ...]:
    listed = entries[:most] if is_list(entries) else []
    return tuple(pid for one in listed if (pid := whole(one, 1, MOST_PID)) is not None)


def _flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None
