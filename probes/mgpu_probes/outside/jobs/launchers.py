"""What a command line is: a launcher of ranks, a wrapper around another command, an interpreter.

The names are those of the programs that launchers install, and of the modules in their
documentation."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import PurePath

Command = tuple[str, ...]
_REMEMBERED = 1024
"""Commands of which is remembered what they are: each is asked about several times."""
_PROGRAMS = {
    "torchrun": "torchrun",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.pt": "deepspeed",
    "ds": "deepspeed",
    "horovodrun": "horovodrun",
    "composer": "composer",
    "colossalai": "colossalai",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "mpiexec.hydra": "mpirun",
    "orterun": "mpirun",
    "prterun": "mpirun",
    "orted": "mpirun",
    "prted": "mpirun",
    "hydra_pmi_proxy": "mpirun",
    "hydra_bstrap_proxy": "mpirun",
    "srun": "srun",
    "slurmstepd": "srun",
    "slurmstepd:": "srun",
    "raylet": "ray",
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "horovod.runner.launch": "horovodrun",
    "composer.cli.launcher": "composer",
}
_LAUNCHING = {"accelerate": ("accelerate", "launch"), "fabric": ("lightning", "run")}
"""Programs that launch only with this first word."""
HOSTS = frozenset({"srun", "ray"})
"""Launchers whose process on this host may have other jobs below it too."""
ANY_PROGRAM = frozenset({"mpirun", "srun"})
"""Launchers that start what is no training just as well."""
_WRAPPERS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "script", "screen", "tmux"),
        *("env", "timeout", "nice", "nohup", "stdbuf", "setsid", "flock", "time", "xargs", "make"),
        *("numactl", "taskset", "chrt", "ionice", "sudo", "su", "runuser", "ssh", "sshd"),
        *("tini", "dumb-init", "init", "systemd", "catchsegv", "strace", "gdb", "perf"),
        *("nsys", "ncu", "singularity", "apptainer", "starter", "enroot", "docker", "podman"),
        *("conda", "mamba", "micromamba", "uv", "poetry", "pdm"),
    }
)
_PYTHON = re.compile(r"^(python|pypy|ipython)[\d.]*[a-z]*$")
_WITH_VALUE = frozenset(("-X", "-W", "--check-hash-based-pycs"))
_SPAWNED = "multiprocessing.spawn import spawn_main"
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "multiprocessing.forkserver",
    "compile_worker",
)
_FORK_SERVER = "multiprocessing.forkserver"


def program_name(word: str) -> str:
    """The program's name; of a login shell too (`-bash`)."""
    return word.rpartition("/")[2].lstrip("-")


@lru_cache(maxsize=_REMEMBERED)
def is_python_command(command: Command) -> bool:
    return bool(command) and _PYTHON.match(program_name(command[0])) is not None


def parse_program(command: Command) -> tuple[str, tuple[str, ...]]:
    """What is run, and its arguments: through an interpreter the module or the script's path."""
    if not command:
        return "", ()
    if not is_python_command(command):
        return command[0], tuple(command[1:])
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word in ("-m", "-c"):
            return (words[0], tuple(words[1:])) if words else ("", ())
        if word in _WITH_VALUE:
            words = words[1:]
        elif not word.startswith("-"):
            return word, tuple(words)
    return "", ()


@lru_cache(maxsize=_REMEMBERED)
def name_launcher(command: Command) -> str | None:
    """The name of the launcher that this command is; None: it is none."""
    name, words = parse_program(command)
    if name in _MODULES:
        return _MODULES[name]
    short = program_name(name.split(" ", 1)[0]) if name else ""
    if short.endswith(".py"):
        short = ".".join(PurePath(name).with_suffix("").parts[-3:])
        return _MODULES.get(short)
    if short in _LAUNCHING:
        known, first = _LAUNCHING[short]
        return known if words[:1] == (first,) else None
    return _PROGRAMS.get(short)


@lru_cache(maxsize=_REMEMBERED)
def is_wrapper(command: Command) -> bool:
    """A shell or another command that runs the command that counts."""
    return bool(command) and (program_name(command[0]) in _WRAPPERS or is_doctor(command))


def is_doctor(command: Command) -> bool:
    name, _ = parse_program(command)
    return program_name(name) in ("mgpu-doctor", "mgpu_doctor") or name.startswith("mgpu_doctor.")


def is_spawned(command: Command) -> bool:
    """A child that multiprocessing started anew (start method `spawn`)."""
    return any(_SPAWNED in word for word in command[1:8])


def is_fork_server(command: Command) -> bool:
    return any(_FORK_SERVER in word for word in command[1:8])


def is_helper(command: Command) -> bool:
    """A process that a library keeps for itself."""
    return any(known in word for word in command[1:8] for known in _HELPERS)


_COUNTS = {
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "accelerate": ("--num_processes", "--num-processes"),
    "mpirun": ("-np", "-n", "--np", "-c"),
    "horovodrun": ("-np", "--num-proc"),
    "composer": ("-n", "--nproc", "--world_size"),
    "deepspeed": ("--num_gpus",),
}
_NODES = (
    "--nnodes",
    "--num_nodes",
    "--num_machines",
    "--num-machines",
    "--hostfile",
    "-H",
    "--host",
)


def count_ranks(command: Command) -> int | None:
    """Ranks that the launcher starts on this host, where its command says so and names no other
    host."""
    known = _COUNTS.get(name_launcher(command) or "", ())
    words = parse_program(command)[1]
    found = None
    for index, word in enumerate(words[:64]):
        key, equals, value = word.partition("=")
        value = value if equals else words[index + 1] if index + 1 < len(words) else ""
        if key in _NODES and value not in ("1", "1:1"):
            return None
        if key in known and found is None and value.isascii() and value.isdigit():
            found = int(value[:6])
        if not word.startswith("-") and word.endswith((".py", ".sh")):
            break  # what follows is the training's own
    return found
