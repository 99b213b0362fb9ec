"""What a process group is set up from: rank, world size, init method, and the order of calls."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_START = (
    "Start the script with `torchrun`, which sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="environment-variable-missing",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="rendezvous: environment variable",
        pattern=r"Error initializing torch\.distributed using env:// rendezvous: environment "
        r"variable (?P<variable>\w+) expected, but not set",
        meaning="The script expects a launcher that sets {variable}, and it is not set.",
        fix="Start it with `torchrun --nproc-per-node=N SCRIPT`; under Slurm with `srun` export "
        "MASTER_ADDR, MASTER_PORT, RANK=$SLURM_PROCID, WORLD_SIZE=$SLURM_NTASKS and "
        "LOCAL_RANK=$SLURM_LOCALID.",
        example="ValueError: Error initializing torch.distributed using env:// rendezvous: "
        "environment variable RANK expected, but not set",
        origin="made: init_process_group in a plain `python` without the variables, torch 2.13",
        more_heads=("Error initializing torch.distributed using env",),
    ),
    Signature(
        id="environment-key-missing",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="KeyError: '",
        pattern=r"^KeyError: '(?P<variable>RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|"
        r"SLURM_PROCID|SLURM_LOCALID|OMPI_COMM_WORLD_RANK|OMPI_COMM_WORLD_LOCAL_RANK)'$",
        meaning="The script reads {variable} from its environment, and no launcher set it.",
        fix=_START,
        example="KeyError: 'LOCAL_RANK'",
        origin="made: a script that reads os.environ['LOCAL_RANK'], Python 3.11",
    ),
    Signature(
        id="local-rank-argument",
        code="failed-exception",
        role=Role.CAUSE,
        needle="unrecognized arguments: --local",
        pattern=r"error: unrecognized arguments: --local[-_]rank=(?P<local_rank>\d+)",
        meaning="`python -m torch.distributed.launch` passes `--local-rank`, which the script "
        "does not know.",
        fix="Start with `torchrun` and read `os.environ['LOCAL_RANK']`; or add "
        "`parser.add_argument('--local-rank', '--local_rank', type=int)`.",
        example="train.py: error: unrecognized arguments: --local-rank=1",
        origin="made: a script without that argument, CPython 3.11",
    ),
    Signature(
        id="init-method-parameter-missing",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle=" rendezvous: ",
        pattern=r"Error initializing torch\.distributed using \w{1,10}:// rendezvous: "
        r"(?P<what>\w{1,20}) parameter missing",
        meaning="`init_process_group` was given an address without the {what} of this process.",
        fix="Pass `rank=` and `world_size=`, or use `env://` under `torchrun`.",
        example="ValueError: Error initializing torch.distributed using tcp:// rendezvous: rank "
        "parameter missing",
        origin="source: torch/distributed/rendezvous.py of torch 2.13",
    ),
    Signature(
        id="init-method-unknown",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="No rendezvous handler for ",
        pattern=r"No rendezvous handler for \S{0,40}",
        meaning="The `init_method` has no known scheme.",
        fix="Write `env://`, `tcp://HOST:PORT` or `file:///PATH`.",
        example="RuntimeError: No rendezvous handler for ://",
        origin="source: torch/distributed/rendezvous.py of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="init-file-refused",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="RuntimeError: open(",
        pattern=r"\bRuntimeError: open\((?P<path>[^)]{1,200})\): (?P<what>Permission denied|No "
        r"such file or directory|Read-only file system)",
        meaning="The file {path} through which the ranks meet cannot be opened ({what}).",
        fix="Use a path on a shared file system that all ranks may write, or `env://`.",
        example="RuntimeError: open(/somewhere/sync): Permission denied",
        origin="recalled: torch/lib/c10d/FileStore.cpp of torch 1.5",
    ),
    Signature(
        id="init-file-refused-native",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="  open(",
        pattern=r"^\W{0,6}what\(\): {1,3}open\((?P<path>[^)]{1,200})\): (?P<what>Permission "
        r"denied|No such file or directory|Read-only file system)",
        meaning="The file {path} through which the ranks meet cannot be opened ({what}).",
        fix="Use a path on a shared file system that all ranks may write, or `env://`.",
        example="  what():  open(/somewhere/sync): Permission denied",
        origin="recalled: torch/lib/c10d/FileStore.cpp of torch 1.5",
        weight=0.6,
    ),
    Signature(
        id="rank-out-of-range",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="rank should be in the interval",
        pattern=r"Invalid rank (?P<given>-?\d+), rank should be in the interval \[0, "
        r"(?P<last>\d+)\]",
        meaning="Rank {given} was given where only 0 to {last} exist: WORLD_SIZE (or "
        "`num_replicas`) is too small.",
        fix="Take both from the group: `rank=dist.get_rank(), "
        "num_replicas=dist.get_world_size()`, or leave them out after `init_process_group`.",
        example="ValueError: Invalid rank 2, rank should be in the interval [0, 1]",
        origin="made: DistributedSampler for 2 replicas with rank 2, torch 2.13",
    ),
    Signature(
        id="group-rank-out-of-range",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="is out of range. Valid ranks are",
        pattern=r"Rank (?P<given>-?\d+) is out of range\. Valid ranks are 0 to (?P<last>-?\d+) "
        r"\(world_size=(?P<world>\d+)\)",
        meaning="The script makes a group with rank {given}, but the job has {world} ranks.",
        fix="Start as many processes as the script is written for, or derive the groups from "
        "`dist.get_world_size()`.",
        example="ValueError: Rank 5 is out of range. Valid ranks are 0 to 1 (world_size=2)",
        origin="made: new_group([0, 5]) in a job of two ranks, torch 2.13",
    ),
    Signature(
        id="mesh-larger-than-world",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="Mesh should not be bigger than default world size",
        pattern=r"Mesh should not be bigger than default world size (?P<world>\d+), but found "
        r"(?P<mesh>\d+) ranks",
        meaning="The device mesh is made for {mesh} ranks and the job has {world}.",
        fix="Start {mesh} processes, or make the product of the mesh's dimensions {world}.",
        example="RuntimeError: Mesh should not be bigger than default world size 2, but found 4 "
        "ranks!",
        origin="made: a 2x2 mesh in a job of two ranks, torch 2.13",
    ),
    Signature(
        id="group-initialised-twice",
        code="failed-exception",
        role=Role.CAUSE,
        needle="initialize the default process group twice",
        pattern=r"trying to initialize the default process group twice",
        meaning="`init_process_group` ran a second time: the script and its framework both call "
        "it.",
        fix="Call it once, or guard it with `if not dist.is_initialized():`.",
        example="ValueError: trying to initialize the default process group twice!",
        origin="made: init_process_group twice, torch 2.13",
    ),
    Signature(
        id="group-not-initialised",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Default process group has not been initialized",
        pattern=r"Default process group has not been initialized, please make sure to call "
        r"init_process_group",
        meaning="`torch.distributed` was used before `init_process_group` or after "
        "`destroy_process_group`.",
        fix="Call `init_process_group` once, before the first use; start the script with "
        "`torchrun`.",
        example="ValueError: Default process group has not been initialized, please make sure to "
        "call init_process_group.",
        origin="made: all_reduce without a process group, torch 2.13",
    ),
)
