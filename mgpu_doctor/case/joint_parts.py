"""The parts of a recording into which several nodes write: how the job ended on each node, which
nodes were lost, and which are not in it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from mgpu_probes.outside.untrusted_files import open_below

from mgpu_doctor.case.box_files import part_folders
from mgpu_doctor.case.job_snapshots import JobSnapshot, decode_job_snapshot
from mgpu_doctor.case.joint_snapshots import join_snapshots
from mgpu_doctor.case.model import AskedHost, Unexamined
from mgpu_doctor.case.untrusted_json import Json, read_object, text, whole, words
from mgpu_doctor.formatting import format_count
from mgpu_doctor.recording.joint_recordings import (
    FRESH,
    LOST,
    NODES,
    NOT_HERE,
    UNANSWERED,
    UNFINISHED,
    UNSEEN,
    UNSEEN_HOST,
    combine_ends,
)
from mgpu_doctor.recording.layout import END, INFO

TOGETHER = 10.0
"""Seconds within which snapshots of several hosts show one moment of a job that stands still: each
is taken once nothing has moved on its host for some seconds, and others confirm that."""
MOST_UNSEEN = 8
_JOIN_THEM = (
    "examine the recordings of all nodes together: `mgpu-doctor diagnose RECORDING RECORDING…`"
)


@dataclass(frozen=True, slots=True)
class JointParts:
    """What the parts say. Empty for a recording of one node."""

    end: Mapping[str, Json] = field(default_factory=dict)
    """How the job ended, like `end.json`; empty: it has not, as far as it is known."""
    over: Mapping[str, bool] = field(default_factory=dict)
    """Host -> whether the job is over on it."""
    lost: tuple[str, ...] = ()
    """Hosts whose part stops without an end."""
    gaps: tuple[Unexamined, ...] = ()
    absent: tuple[AskedHost, ...] = ()
    """Hosts of the job without a part, as far as their names are known."""


def read_parts(roots: Sequence[Path], hosts: Sequence[Path]) -> JointParts:
    """The parts below the folders `hosts` of the recordings `roots`, which are of one job."""
    parts = {
        host.name: [part for _, part in part_folders(_root(host), host) if (part / INFO).is_file()]
        for host in hosts
    }
    parts = {name: folders for name, folders in parts.items() if folders}
    if not parts:
        return JointParts()
    wholes = [_read(root / END, root) for root in roots]
    wholes = [whole for whole in wholes if whole]
    roots_of = {host.name: _root(host) for host in hosts}
    read = {
        name: [_read(part / END, roots_of[name]) for part in folders]
        for name, folders in parts.items()
    }
    ends = [end for name in parts for end in read[name] if end]
    open_ = [name for name in parts if not all(read[name])]
    known = {name: state for whole in wholes for name, state in _texts(whole, UNFINISHED).items()}
    lost = {name for name in open_ if known.get(name) == LOST}
    if open_ and not wholes:
        touched = {
            name: max(_find_touched(part, roots_of[name]) for part in folders)
            for name, folders in parts.items()
        }
        newest = time.time() if ends else max(touched.values())
        silent = {name for name in open_ if newest - touched[name] > FRESH}
        lost |= {name for name in silent if not any(read[name])}  # else it lost a task alone
    unseen = _list_unseen(roots, wholes, parts)
    end: Mapping[str, Json] = {}
    if wholes or set(open_) <= lost:
        end = combine_ends(ends) if ends else {}
    return JointParts(
        end,
        {name: name not in open_ or name in lost for name in parts},
        tuple(sorted(lost)),
        (*unseen, *_list_running([name for name in open_ if wholes and name not in lost])),
        tuple(_list_absent(unseen, wholes, parts)),
    )


def _list_unseen(
    roots: Sequence[Path], wholes: Sequence[Mapping[str, Json]], hosts: Collection[str]
) -> tuple[Unexamined, ...]:
    """What the nodes could not see. Several recordings have together what each of them lacks, but
    for the nodes of which none of them has a part."""
    unseen = {name: why for end in wholes for name, why in _texts(end, UNSEEN).items()}
    if len(roots) > 1:
        nodes = max(whole(_read(root / INFO, root).get(NODES)) or 0 for root in roots)
        missing = max(0, nodes - len(hosts))
        absent = [
            name
            for name in unseen
            if name.startswith(UNSEEN_HOST) and name.removeprefix(UNSEEN_HOST) not in hosts
        ]
        unseen = {name: unseen[name] for name in absent[: min(missing, MOST_UNSEEN)]}
        if others := missing - len(unseen):
            unseen[format_count(others, "other node")] = NOT_HERE
    named = list(unseen.items())[: MOST_UNSEEN + 1]
    return tuple(Unexamined(name, why, _JOIN_THEM) for name, why in named)


def _list_absent(
    unseen: Sequence[Unexamined], wholes: Sequence[Mapping[str, Json]], hosts: Collection[str]
) -> Iterator[AskedHost]:
    """Yields the hosts among what the nodes could not see. Those are silent of which no node says
    anything else."""
    silent: set[str] = set()
    others: set[str] = set()
    for end in wholes:
        unanswered = {*(words(end.get(UNANSWERED)) or ())}
        silent |= unanswered
        others |= _texts(end, UNSEEN).keys() - unanswered
    for gap in unseen:
        name = gap.probe.removeprefix(UNSEEN_HOST)
        if gap.probe.startswith(UNSEEN_HOST) and name not in hosts:
            yield AskedHost(name, None, gap.reason, gap.remedy, gap.probe in silent - others)


def _list_running(hosts: Sequence[str]) -> tuple[Unexamined, ...]:
    """Hosts on which the job had not ended when the first node reported."""
    reason = "the job had not ended on it when the first node stopped waiting"
    named = hosts[:MOST_UNSEEN]
    return tuple(Unexamined(f"host {name}", reason, "examine it again later") for name in named)


def _find_touched(part: Path, root: Path) -> float:
    """When a node last showed that it writes a part."""
    try:
        descriptor = open_below(root, part / INFO)
    except OSError:
        return 0.0
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def join_looks(
    looks: Mapping[str, Sequence[JobSnapshot]], parts: Collection[str]
) -> list[JobSnapshot]:
    """The snapshots of several hosts, oldest first, those taken at one moment as one. Moments at
    which one of the hosts `parts` was not looked at are left out: ranks that wait for those of
    another host would be seen as if these did not exist. Those that a gathered job has of all its
    hosts already, in the folder of any of them, stay as they are."""
    whole = [one for snapshots in looks.values() for one in snapshots if one.hosts]
    if whole:
        return sorted(whole, key=lambda one: one.at)
    if len(parts) < 2:
        return [snapshot for snapshots in looks.values() for snapshot in snapshots]
    taken = {host: list(looks.get(host, ())) for host in sorted(parts)}
    if not all(taken.values()):
        return []
    first, *others = taken
    joined: list[JobSnapshot] = []
    for snapshot in taken[first]:
        near = {first: snapshot}
        for host in others:
            nearest = min(taken[host], key=lambda one: abs(one.at - snapshot.at))
            if abs(nearest.at - snapshot.at) <= TOGETHER:
                near[host] = nearest
        line = join_snapshots(
            {host: msgspec.to_builtins(one) for host, one in near.items()}, list(taken)
        )
        if len(near) == len(taken) and line is not None:
            joint = decode_job_snapshot(msgspec.json.encode(line))
            joined += [] if joint is None else [joint]
    return joined


def _root(host: Path) -> Path:
    return host.parent.parent


def _read(path: Path, root: Path) -> Mapping[str, Json]:
    try:
        return read_object(path, root=root)
    except (OSError, ValueError):
        return {}


def _texts(content: Mapping[str, Json], key: str) -> dict[str, str]:
    """The texts of an object in an object."""
    items = content.get(key)
    named = items.items() if isinstance(items, dict) else ()
    pairs = ((text(name, 64), text(value, 500)) for name, value in named)
    return {name: value for name, value in pairs if name and value}
