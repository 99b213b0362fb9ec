"""Ranks that multiprocessing started: no environment variable names their rank.

They are numbered in the order of their start, as torch.multiprocessing.spawn does. Threads of
torch.distributed distinguish them from other children, such as a manager."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from mgpu_probes.outside.jobs.command_lines import is_fork_server, is_helper, is_spawned
from mgpu_probes.outside.jobs.process_table import Machine
from mgpu_probes.outside.jobs.rank_environment import Place, is_loopback
from mgpu_probes.outside.jobs.training_evidence import (
    LOADER_THREAD,
    has_device_open,
    has_framework,
    has_joined_group,
    hosts_store,
    is_in_process_group,
)

ORDER = "order"
_HANDLES = re.compile(r"tracker_fd=(\d{1,9}), pipe_handle=(\d{1,9})")
_HOST_OPTIONS = (
    "--node_rank", "--node-rank", "--nodes", "--nnodes", "--num_nodes", "--num-nodes",
    "--machine_rank", "--machine-rank", "--dist-url", "--dist_url", "--num-machines",
)  # fmt: skip
_IDLE_RATIO = 1.5
"""CPU time of the parent, relative to its ranks, up to which it only waits for them."""
_MANAGER = "/pymp-"
"""Where multiprocessing's managers listen: a socket in a folder of this name."""


def find_spawned_ranks(machine: Machine, parent: int, *, lenient: bool) -> list[int]:
    """The pids of the ranks among the children of `parent` that multiprocessing started, oldest
    first, zombies included; empty if they are no ranks.

    `lenient`: they count as ranks even before they join a process group."""
    alive = [pid for pid in _list_started(machine, parent) if _may_be_a_rank(machine, pid)]
    if not alive or is_in_process_group(machine, parent):
        return []
    ranks = _find_ranks(machine, parent, alive, lenient=lenient)
    if not ranks:
        return []
    names = {machine.entries[pid].name for pid in ranks}
    first = machine.entries[ranks[0]].started
    dead = [
        pid
        for pid in _list_children(machine, parent)
        if (entry := machine.entries[pid]).zombie and entry.name in names and entry.started >= first
    ]
    return sorted(ranks + dead, key=lambda pid: machine.entries[pid].started)


def number_by_start(machine: Machine, parent: int, ranks: Sequence[int]) -> dict[int, Place]:
    """Pid -> place of these ranks. They are numbered only if the first of them is certainly rank 0:
    rank 0 may have ended and been reaped."""
    sure = _is_rank_zero(machine, ranks[0])
    here = _is_on_one_host(machine, parent)
    return {
        pid: Place(
            source=ORDER,
            rank=index if here and sure else None,
            local_rank=index if sure else None,
            world_size=None,
            local_world_size=None,
            rendezvous=(),
            one_host=here,
        )
        for index, pid in enumerate(ranks)
    }


def _is_rank_zero(machine: Machine, pid: int) -> bool:
    """Whether the first remaining child is the first that was started.

    Programs join their children in order, so a zombie is the first. Rank 0 hosts the TCP store. And
    the first child of multiprocessing.popen_spawn_posix gets the second
    descriptor after that of the resource tracker, if the program opened nothing between (measured
    with Python 3.11)."""
    if machine.entries[pid].zombie or hosts_store(machine, pid):
        return True
    handles = (_HANDLES.search(word) for word in machine.command(pid)[:8])
    return any(match is not None and int(match[2]) == int(match[1]) + 2 for match in handles)


def _find_ranks(machine: Machine, parent: int, alive: list[int], *, lenient: bool) -> list[int]:
    """The ranks among the living children, oldest first."""
    alive = sorted(alive, key=lambda pid: machine.entries[pid].started)
    met = [pid for pid in alive if has_joined_group(machine, pid)]
    if met:
        return met  # these threads exist only once the group is complete
    managers = machine.listening(_MANAGER)
    alive = [pid for pid in alive if managers.isdisjoint(machine.open_files(pid))]
    stores = [index for index, pid in enumerate(alive) if hosts_store(machine, pid)]
    if stores:
        return alive[stores[0] :]  # rank 0, the first of them, hosts the store
    if any(is_in_process_group(machine, pid) for pid in alive):
        return alive
    several = len(alive) > 1 and not has_device_open(machine, parent)
    if several and all(has_device_open(machine, pid) for pid in alive):
        return alive
    return alive if several and lenient and _is_parent_idle(machine, parent, alive) else []


def _is_parent_idle(machine: Machine, parent: int, alive: list[int]) -> bool:
    most = max(machine.entries[pid].cpu_seconds for pid in alive)
    idle = machine.entries[parent].cpu_seconds <= _IDLE_RATIO * most
    return idle and any(has_framework(machine, pid) for pid in alive)


def _list_started(machine: Machine, parent: int) -> list[int]:
    """The children that multiprocessing started: spawned, forked, or by its fork server."""
    own = machine.command(parent)
    return [
        pid
        for pid in _list_children(machine, parent)
        if (command := machine.command(pid))
        and (
            is_spawned(command)
            or command == own
            or is_fork_server(machine.command(machine.entries[pid].parent))
        )
    ]


def _list_children(machine: Machine, parent: int) -> list[int]:
    """The pids of its children and of its fork server's children."""
    direct = list(machine.children.get(parent, ()))
    servers = [pid for pid in direct if is_fork_server(machine.command(pid))]
    return direct + [pid for server in servers for pid in machine.children.get(server, ())]


def _may_be_a_rank(machine: Machine, pid: int) -> bool:
    entry = machine.entries[pid]
    helper = is_helper(machine.command(pid))
    forked_by_server = is_fork_server(machine.command(entry.parent))
    return not (
        entry.zombie
        or entry.name == LOADER_THREAD
        or (helper and not forked_by_server)
        or pid == os.getpid()
    )


def _is_on_one_host(machine: Machine, parent: int) -> bool:
    if any(word.partition("=")[0] in _HOST_OPTIONS for word in machine.command(parent)):
        return False
    address = (machine.environment(parent) or {}).get("MASTER_ADDR")
    return address is None or is_loopback(address)
