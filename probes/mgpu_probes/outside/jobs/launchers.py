"""The launchers of ranks: how each is recognized in a command line or a log, and its options.

Names of programs are those that the launchers install; names of modules are those in their
documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath

from mgpu_probes.outside.jobs.command_lines import (
    CACHED_COMMANDS,
    Command,
    parse_program,
    program_name,
)


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that starts ranks."""

    name: str
    programs: tuple[str, ...] = ()
    """Its executables, and those that it starts on each host."""
    modules: tuple[str, ...] = ()
    """Modules for `python -m`."""
    subcommand: tuple[str, str] | None = None
    """A program that launches ranks only with this first argument."""
    rank_options: tuple[str, ...] = ()
    """Options whose value is the number of ranks on this host."""
    log_marks: tuple[str, ...] = ()
    """Texts in a console log that only this launcher and its tracebacks print."""
    wrapper_folder: str | None = None
    """Its source folder, if its tracebacks only repeat that the training command failed."""
    hosts_several_jobs: bool = False
    """Whether one of its processes may have several jobs below it."""
    starts_any_program: bool = False
    """Whether it starts programs that train nothing just as well."""


LAUNCHERS = (
    Launcher(
        "torchrun",
        programs=("torchrun",),
        modules=(
            "torch.distributed.run",
            "torch.distributed.launch",
            "torch.distributed.launcher",
        ),
        rank_options=("--nproc-per-node", "--nproc_per_node"),
        log_marks=("torch/distributed/elastic", "torch.distributed.elastic"),
    ),
    Launcher(
        "accelerate",
        programs=("accelerate-launch",),
        modules=("accelerate.commands.launch",),
        subcommand=("accelerate", "launch"),
        rank_options=("--num_processes", "--num-processes"),
        log_marks=("/accelerate/commands/",),
        wrapper_folder="/accelerate/commands/",
    ),
    Launcher(
        "deepspeed",
        programs=("deepspeed", "deepspeed.pt", "ds"),
        modules=("deepspeed.launcher.runner", "deepspeed.launcher.launch"),
        rank_options=("--num_gpus",),
        log_marks=("/deepspeed/launcher/",),
        wrapper_folder="/deepspeed/launcher/",
    ),
    Launcher(
        "horovodrun",
        programs=("horovodrun",),
        modules=("horovod.runner.launch",),
        rank_options=("-np", "--num-proc"),
        log_marks=("horovod/runner",),
        wrapper_folder="/horovod/runner/",
    ),
    Launcher(
        "srun",
        programs=("srun", "slurmstepd", "slurmstepd:"),
        log_marks=("slurmstepd: ", "srun: "),
        hosts_several_jobs=True,
        starts_any_program=True,
    ),
    Launcher(
        "mpirun",
        programs=(
            *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "orted", "prted"),
            *("hydra_pmi_proxy", "hydra_bstrap_proxy"),
        ),
        rank_options=("-np", "-n", "--np", "-c"),
        log_marks=("mpirun ", "prterun "),
        starts_any_program=True,
    ),
    Launcher(
        "composer",
        programs=("composer",),
        modules=("composer.cli.launcher",),
        rank_options=("-n", "--nproc", "--world_size"),
    ),
    Launcher("colossalai", programs=("colossalai",)),
    Launcher("lightning", subcommand=("fabric", "run")),
    Launcher("ray", programs=("raylet",), hosts_several_jobs=True),
)
"""If a log has marks of several launchers, the first of them in this order started the ranks."""

HOSTS_SEVERAL_JOBS = frozenset(
    launcher.name for launcher in LAUNCHERS if launcher.hosts_several_jobs
)
STARTS_ANY_PROGRAM = frozenset(
    launcher.name for launcher in LAUNCHERS if launcher.starts_any_program
)
WRAPPER_FOLDERS = tuple(
    launcher.wrapper_folder for launcher in LAUNCHERS if launcher.wrapper_folder
)
_BY_NAME = {launcher.name: launcher for launcher in LAUNCHERS}
_BY_PROGRAM = {program: launcher.name for launcher in LAUNCHERS for program in launcher.programs}
_BY_MODULE = {module: launcher.name for launcher in LAUNCHERS for module in launcher.modules}
_BY_SUBCOMMAND = {launcher.subcommand[0]: launcher for launcher in LAUNCHERS if launcher.subcommand}
_HOST_OPTIONS = (
    "--nnodes",
    "--num_nodes",
    "--num_machines",
    "--num-machines",
    "--hostfile",
    "-H",
    "--host",
)
"""Options of launchers that name other hosts."""
_MOST_WORDS = 64


@lru_cache(maxsize=CACHED_COMMANDS)
def name_launcher(command: Command) -> str | None:
    """The name of the launcher that this command starts; None if it starts none."""
    name, arguments = parse_program(command)
    if name in _BY_MODULE:
        return _BY_MODULE[name]
    program = program_name(name.split(" ", 1)[0]) if name else ""
    if program.endswith(".py"):
        return _BY_MODULE.get(".".join(PurePath(name).with_suffix("").parts[-3:]))
    if (launcher := _BY_SUBCOMMAND.get(program)) is not None:
        assert launcher.subcommand is not None
        return launcher.name if arguments[:1] == launcher.subcommand[1:] else None
    return _BY_PROGRAM.get(program)


def launches_one_job(command: Command) -> bool:
    """Whether this command starts a launcher below which there is one job."""
    name = name_launcher(command)
    return name is not None and name not in HOSTS_SEVERAL_JOBS


def find_launcher(command: Sequence[str]) -> str | None:
    """The name of the first launcher in a command line, also behind wrappers such as `env`; None
    if there is none before the training script."""
    words = tuple(command[:_MOST_WORDS])
    for index, word in enumerate(words):
        if (name := name_launcher(words[index:])) is not None:
            return name
        if _is_script(word):
            break
    return None


def find_launcher_in_log(text: str) -> str | None:
    """The name of the launcher that printed parts of this console log; None if unknown."""
    marked = (
        launcher.name for launcher in LAUNCHERS if any(mark in text for mark in launcher.log_marks)
    )
    return next(marked, None)


def count_ranks(command: Command) -> int | None:
    """How many ranks the launcher starts on this host; None if its command line does not say, or
    names other hosts."""
    launcher = _BY_NAME.get(name_launcher(command) or "")
    words = parse_program(command)[1]
    count = None
    for index, word in enumerate(words[:_MOST_WORDS]):
        key, equals, value = word.partition("=")
        value = value if equals else words[index + 1] if index + 1 < len(words) else ""
        if key in _HOST_OPTIONS and value not in ("1", "1:1"):
            return None
        is_count = launcher is not None and key in launcher.rank_options
        if is_count and count is None and value.isascii() and value.isdigit():
            count = int(value[:6])
        if _is_script(word):
            break
    return count


def _is_script(word: str) -> bool:
    """Whether it is the training script: the words after it are the training's own."""
    return not word.startswith("-") and word.endswith((".py", ".sh"))
