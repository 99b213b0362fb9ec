"""A process's place in its job (rank, local rank, world size), from its environment variables.

Sources: torch.distributed.run's docs ("Environment Variables"), Open MPI's mpirun(1), Hydra's
PMI variables, srun(1), TensorFlow's TF_CONFIG guide, Horovod's `gloo_run`, Lightning's
`LightningEnvironment`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

LOOPBACK = ("localhost", "127.", "::1", "[::1]")
MOST_RANKS = 1 << 24
MOST_CLUSTER = 4096
VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TF_CONFIG"),
        *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        *("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
        *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),
        *("SLURM_NNODES", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_LOCALID"),
    }
)
"""The only variables that are kept: others may contain passwords."""
_WORKERS = ("chief", "master", "worker")
"""Tasks of a TF_CONFIG that are ranks, in their order; `master` is the older name of `chief`."""


@dataclass(frozen=True, slots=True)
class Place:
    source: str
    """environment, mpi, slurm, horovod, lightning, TF_CONFIG."""
    rank: int | None
    local_rank: int | None
    world_size: int | None
    local_world_size: int | None
    """Ranks on this host; None: unknown."""
    rendezvous: tuple[str, ...]
    """Key that all ranks of the job share and no other job has; empty: unknown."""
    one_host: bool
    """Whether all ranks of the job are on this host."""
    is_auxiliary: bool = False
    """Whether it belongs to the job without being a rank: a parameter server, an evaluator."""


def parse_place(environment: Mapping[str, str]) -> Place | None:
    """The place that the environment names; None if it names none.

    A process with a place need not be a rank: children inherit the environment."""
    for reader in (_torch, _horovod, _mpi, _hydra, _tensorflow, _slurm, _lightning):
        place = reader(environment)
        if place is not None:
            return place
    return None


def is_loopback(address: str) -> bool:
    return address.startswith(LOOPBACK)


def _torch(environment: Mapping[str, str]) -> Place | None:
    """torchrun and all that speak its language: accelerate, deepspeed, ranks started by hand."""
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    run, world = environment.get("TORCHELASTIC_RUN_ID", ""), _number(environment, "WORLD_SIZE")
    return _numbered(
        environment,
        "environment",
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),  # the latter is DeepSpeed's
        rendezvous=("torch", run, address, port, str(world)) if port else (),
        address=address,
    )


def _horovod(environment: Mapping[str, str]) -> Place | None:
    address = environment.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
    port = environment.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    return _numbered(
        environment,
        "horovod",
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
        ("HOROVOD_LOCAL_SIZE",),
        rendezvous=("horovod", address, port) if port else (),
        address=address,
    )


def _mpi(environment: Mapping[str, str]) -> Place | None:
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", "")
    return _numbered(
        environment,
        "mpi",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        rendezvous=("mpi", job) if job else (),
    )


def _hydra(environment: Mapping[str, str]) -> Place | None:
    """MPICH, Intel MPI and MVAPICH. srun sets PMI_RANK too, but not the local variables."""
    if "SLURM_PROCID" in environment:
        return None
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
    return _numbered(environment, "mpi", names, ("MPI_LOCALNRANKS",))


def _numbered(
    environment: Mapping[str, str],
    source: str,
    names: tuple[str, str, str],
    local_sizes: tuple[str, ...],
    *,
    rendezvous: tuple[str, ...] = (),
    address: str = "",
) -> Place | None:
    """The place by the variables of rank, world size and local rank (`names`); None without a valid
    rank and world size. `local_sizes`: variables of the ranks per host, of which the first valid
    one counts. `address`: that of the rendezvous."""
    rank, world, local_rank = (_number(environment, name) for name in names)
    if rank is None or world is None or rank >= world:
        return None
    sizes = (_number(environment, name) for name in local_sizes)
    local_world = next((size for size in sizes if size is not None), None)
    return Place(
        source=source,
        rank=rank,
        local_rank=local_rank,
        world_size=world,
        local_world_size=local_world,
        rendezvous=rendezvous,
        one_host=is_loopback(address) or local_world == world,
    )


def _slurm(environment: Mapping[str, str]) -> Place | None:
    """A task of a step. Slurm sets SLURM_PROCID in a batch script too, which is no task."""
    if _number(environment, "SLURM_STEP_ID") is None:
        return None
    rank = _number(environment, "SLURM_PROCID")
    world = _number(environment, "SLURM_STEP_NUM_TASKS") or _number(environment, "SLURM_NTASKS")
    if rank is None or (world is not None and rank >= world):
        return None
    nodes = _number(environment, "SLURM_STEP_NUM_NODES") or _number(environment, "SLURM_NNODES")
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    return Place(
        source="slurm",
        rank=rank,
        local_rank=_number(environment, "SLURM_LOCALID"),
        world_size=world,
        local_world_size=world if nodes == 1 else None,
        rendezvous=("slurm", job, step) if job else (),
        one_host=nodes == 1,
    )


def _lightning(environment: Mapping[str, str]) -> Place | None:
    """The children of Lightning's own launcher, which know their node and local rank. Rank 0 is
    their parent and has none of these variables."""
    local, world = _number(environment, "LOCAL_RANK"), _number(environment, "WORLD_SIZE")
    if local is None or world is None or "NODE_RANK" not in environment:
        return None
    one_host = environment["NODE_RANK"] == "0" and is_loopback(environment.get("MASTER_ADDR", ""))
    port = environment.get("MASTER_PORT", "")
    return Place(
        source="lightning",
        rank=local if one_host and local < world else None,
        local_rank=local,
        world_size=world,
        local_world_size=world if one_host else None,
        rendezvous=("torch", environment.get("MASTER_ADDR", ""), port) if port else (),
        one_host=one_host,
    )


def _tensorflow(environment: Mapping[str, str]) -> Place | None:
    """The chief, then the workers, are the ranks; parameter servers and evaluators are not."""
    try:
        config = json.loads(environment.get("TF_CONFIG", ""))
        cluster, task = config["cluster"], config["task"]
        hosts = {kind: [str(host) for host in cluster[kind]] for kind in sorted(cluster)}
        kind, index = str(task["type"]), int(task["index"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    before = 0
    rank = None
    for known in _WORKERS:
        members = len(hosts.get(known, ()))
        if kind == known and 0 <= index < members:
            rank = before + index
        before += members
    every = [host for listed in hosts.values() for host in listed]
    one_host = all(map(is_loopback, every)) or len({host.rpartition(":")[0] for host in every}) == 1
    return Place(
        source="TF_CONFIG",
        rank=rank,
        local_rank=None,
        world_size=before or None,
        local_world_size=before if one_host and before else None,
        rendezvous=("TF_CONFIG", json.dumps(hosts)[:MOST_CLUSTER]),
        one_host=one_host,
        is_auxiliary=kind not in _WORKERS,
    )


def _number(environment: Mapping[str, str], key: str) -> int | None:
    """The variable's value from 0 to `MOST_RANKS`; None if it is missing or invalid."""
    text = environment.get(key, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 8):
        return None
    number = int(text)
    return number if number <= MOST_RANKS else None
