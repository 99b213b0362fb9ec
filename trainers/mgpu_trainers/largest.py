"""Finds the largest batch that fits, then becomes the command with that number instead of `auto`.

    python -m mgpu_trainers.largest torch-ddp --ranks 2 -- COMMAND --batch auto …

Batches are tried in a separate process, limited to a rank's share of the free memory. Imports no
framework.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mgpu_trainers import catalogue
from mgpu_trainers.options import AUTO, BATCH

SPARED = 0.2
"""Share of the free memory that is left alone: for the loader, and for what others will need."""

LONG_STEP = 4.0
"""Seconds of a step from which larger batches are not tried."""


CLOSE_ENOUGH = 8
"""The search ends if the smallest size that did not fit is larger by at most 1/CLOSE_ENOUGH."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One batch that fit: the seconds its step took, and the bytes of memory."""

    seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The largest batch that was found."""

    size: int
    trial: Trial
    limit: Literal["memory", "data", "time"]
    """What kept it from being larger."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m mgpu_trainers.largest")
    parser.add_argument("trainer", help="its name")
    parser.add_argument("--ranks", type=int, default=1)
    parser.usage = "%(prog)s TRAINER --ranks N -- COMMAND, with --batch auto in it"
    arguments = list(sys.argv[1:] if argv is None else argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parsed, command = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    try:
        trainer = catalogue.find(parsed.trainer)
    except catalogue.UsageError as error:
        parser.error(str(error))
    if trainer.module not in command:
        parser.error(f"the command after -- must be one that starts {trainer.module}")
    options = catalogue.make_parser(trainer).parse_args(
        command[command.index(trainer.module) + 1 :]
    )
    if options.batch != AUTO:
        parser.error("there is no --batch auto in the command")
    choice, where = find_largest(trainer, parsed.ranks, options)
    print(describe_choice(trainer.name, choice, where), file=sys.stderr, flush=True)
    os.execv(command[0], replace_auto(command, choice.size))


def find_largest(
    trainer: catalogue.Trainer, ranks: int, options: argparse.Namespace
) -> tuple[BatchChoice, str]:
    """The largest batch, and in how much memory it was tried.

    Ends the process if no batch fits or free memory is unknown.
    """
    device, bytes_each, where = _share_memory(trainer.name, ranks, options.device)
    with start_trials(options, device, bytes_each) as trials:
        most = trials.samples // trainer.count_shares(ranks, None)
        choice = search_largest(trials.fits, most, LONG_STEP, BATCH[options.model])
    if choice is None:
        sys.exit(f"{trainer.name}: not one sample fits into {where}")
    return choice, where


def replace_auto(command: Sequence[str], size: int) -> list[str]:
    """The command with a number in place of `auto`."""
    place = list(command).index("--batch") + 1
    return [*command[:place], str(size), *command[place + 1 :]]


def describe_choice(name: str, choice: BatchChoice, where: str) -> str:
    """What was chosen, and why, as one sentence."""
    step = (
        f"a step takes {choice.trial.seconds:.2g} s and {_format_size(choice.trial.memory)} at most"
    )
    why = {
        "memory": f"the largest that fits into {where}",
        "data": "all the samples that a rank has; memory would have had room for more",
        "time": f"it fits; larger ones were not tried, as a step takes long enough (in {where})",
    }[choice.limit]
    return f"{name}: --batch {choice.size}: {why}; {step}"


def _share_memory(name: str, ranks: int, wanted: str) -> tuple[str, int, str]:
    """The device, the bytes there that a rank may take, and the same in words."""
    count, least = (0, 0) if wanted == "cpu" else count_gpus()
    if count >= ranks:
        share = int(least * (1 - SPARED))
        return "cuda", share, f"{_format_size(share)}, what is free on the fullest GPU less a fifth"
    if wanted == "cuda":
        sys.exit(f"{name}: {count} GPUs are too few; try --device cpu")
    memory = free_memory()
    if memory is None:
        sys.exit(
            f"{name}: --batch auto: this system does not say how much memory is free; give a number"
        )
    share = int(memory[0] * (1 - SPARED) / ranks)
    return (
        "cpu",
        share,
        f"{_format_size(share)}, a rank's part of what is free of {memory[1]} less a fifth",
    )


def _format_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def search_largest(
    fits: Callable[[int], Trial | None], most: int, patience: float, first: int = 1
) -> BatchChoice | None:
    """The largest size up to `most` that fits, found with few trials; None: not even one does.

    `fits`: None for a size that does not. Sizes are doubled from `first` on, until one does not fit
    or its step takes longer than `patience` seconds; then sizes in between are tried. Pure.
    """
    size, too_large = min(first, most), most + 1
    best: tuple[int, Trial] | None = None
    while True:
        trial = fits(size)
        if trial is None:
            too_large = size
        else:
            best = size, trial
            if size == most:
                return BatchChoice(size, trial, "data")
            if trial.seconds > patience:
                return BatchChoice(size, trial, "time")
        low = best[0] if best else 0
        if too_large <= most and too_large - low <= max(1, low // CLOSE_ENOUGH):
            return BatchChoice(*best, "memory") if best else None
        size = min(2 * size, most) if too_large > most else (low + too_large) // 2


LONGEST_TRIAL = 120.0
"""Seconds that one trial may take."""

_TRIALS = "from mgpu_trainers.pytorch.common.batch_trial import main; main()"

_COUNTS = (
    "import torch; n = torch.cuda.device_count(); "
    "print(n, min([torch.cuda.mem_get_info(i)[0] for i in range(n)], default=0))"
)


def count_gpus() -> tuple[int, int]:
    """How many GPUs there are, and the free bytes of the fullest."""
    ended = subprocess.run(
        isolated_python(_COUNTS), capture_output=True, text=True, timeout=LONGEST_TRIAL, check=False
    )
    counts = ended.stdout.split()
    return (
        (int(counts[0]), int(counts[1])) if ended.returncode == 0 and len(counts) == 2 else (0, 0)
    )


def isolated_python(program: str) -> list[str]:
    """A command without PYTHON… variables, so that nothing takes a trial for the training."""
    package_path = str(Path(__file__).resolve().parent.parent)
    path = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    return [sys.executable, "-E", "-c", path + program, "\n".join((package_path, *sys.path))]


class TrialProcess:
    """The process that tries batches (`batch_trial`).

    A batch that kills it, or takes too long, does not fit.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until `end`
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._process = process
        reply = self._answer()
        if reply is None:
            self._errors.seek(0)
            lines = self._errors.read(100_000).strip().splitlines() or ["it printed nothing"]
            sys.exit(f"--batch auto: the process that tries batches failed: {lines[-1][:300]}")
        self.samples = int(reply["samples"])
        return process

    def fits(self, size: int) -> Trial | None:
        if self._process.poll() is not None:
            self._start()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{size}\n")
        self._process.stdin.flush()
        reply = self._answer()
        if reply is None or not reply["fits"]:
            return None
        return Trial(float(reply["seconds"]), int(reply["bytes"]))

    def _answer(self) -> dict[str, float] | None:
        assert self._process.stdout is not None
        killer = threading.Timer(LONGEST_TRIAL, self._process.kill)
        killer.start()
        line = self._process.stdout.readline()
        killer.cancel()
        if not line:
            self._process.wait()
            return None
        reply: dict[str, float] = json.loads(line)
        return reply

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


@contextmanager
def start_trials(options: argparse.Namespace, device: str, room: int) -> Iterator[TrialProcess]:
    """Trials with these options, in no more than `room` bytes."""
    names = ("model", "precision", "checkpointing", "threads")
    settings = [text for name in names for text in (f"--{name}", str(getattr(options, name)))]
    trials = TrialProcess(
        [*isolated_python(_TRIALS), *settings, "--device", device, "--room", str(room)]
    )
    try:
        yield trials
    finally:
        trials.end()


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")

_V2 = ("memory.max", "memory.current")


def free_memory(root: Path = Path("/")) -> tuple[int, str] | None:
    """Bytes that are free for a new process, and what limits them; None: unknown (not Linux).

    The least of the host's memory and of each control group this process is in. Sources:
    proc_meminfo(5); the kernel's cgroup-v2.rst (memory.max, memory.current) and
    cgroup-v1/memory.rst.
    """
    limits = [*_read_host(root), *_read_groups(root)]
    return min(limits) if limits else None


def _read_host(root: Path) -> Iterator[tuple[int, str]]:
    for line in _read_lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name == "MemAvailable" and fields and fields[0].isdigit():
            yield int(fields[0]) * 1024, "the host's memory"


def _read_groups(root: Path) -> Iterator[tuple[int, str]]:
    """Each control group that this process is in, up to the outermost that can be seen."""
    mounted = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "memory"):
            continue
        top, names = (mounted / "memory", _V1) if controllers else (mounted, _V2)
        inner = Path(path.strip().lstrip("/"))
        for folder in (inner, *inner.parents):
            limit, used = (_read_number(top / folder / name) for name in names)
            if limit is not None and used is not None:
                yield max(0, limit - used), "its control group's memory"


def _read_number(path: Path) -> int | None:
    text = "".join(_read_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None  # `max`: there is no limit


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    main()
