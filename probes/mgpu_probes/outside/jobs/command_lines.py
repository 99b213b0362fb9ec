"""Recognizes command lines: Python, wrappers around other commands, helpers of multiprocessing."""

from __future__ import annotations

import re
from functools import lru_cache

Command = tuple[str, ...]
CACHED_COMMANDS = 1024
"""Commands whose classification is cached: each is classified several times per scan."""
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
_OPTIONS_WITH_VALUE = frozenset(("-X", "-W", "--check-hash-based-pycs"))
_SPAWNED = "multiprocessing.spawn import spawn_main"
_FORK_SERVER = "multiprocessing.forkserver"
_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    _FORK_SERVER,
    "compile_worker",
)


def program_name(word: str) -> str:
    """The name of a program without its folder, also of a login shell (`-bash`)."""
    return word.rpartition("/")[2].lstrip("-")


@lru_cache(maxsize=CACHED_COMMANDS)
def is_python_command(command: Command) -> bool:
    """Whether the command starts a Python interpreter."""
    return bool(command) and _PYTHON.match(program_name(command[0])) is not None


def parse_program(command: Command) -> tuple[str, tuple[str, ...]]:
    """The program and its arguments. For a Python interpreter: its module or the script's path."""
    if not command:
        return "", ()
    if not is_python_command(command):
        return command[0], tuple(command[1:])
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word in ("-m", "-c"):
            return (words[0], tuple(words[1:])) if words else ("", ())
        if word in _OPTIONS_WITH_VALUE:
            words = words[1:]
        elif not word.startswith("-"):
            return word, tuple(words)
    return "", ()


@lru_cache(maxsize=CACHED_COMMANDS)
def is_wrapper(command: Command) -> bool:
    """Whether it is a shell or another program that runs the command of interest."""
    return bool(command) and (program_name(command[0]) in _WRAPPERS or is_doctor(command))


def is_doctor(command: Command) -> bool:
    """Whether it runs mgpu-doctor."""
    name, _ = parse_program(command)
    return program_name(name) in ("mgpu-doctor", "mgpu_doctor") or name.startswith("mgpu_doctor.")


def is_spawned(command: Command) -> bool:
    """Whether multiprocessing started it with the start method `spawn`."""
    return any(_SPAWNED in word for word in command[1:8])


def is_fork_server(command: Command) -> bool:
    """Whether it is the fork server of multiprocessing."""
    return any(_FORK_SERVER in word for word in command[1:8])


def is_helper(command: Command) -> bool:
    """Whether it is a process that a library runs for its own purposes."""
    return any(helper in word for word in command[1:8] for helper in _HELPERS)
