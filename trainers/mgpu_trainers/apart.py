"""Starts ranks that outlive each other: torchrun ends all of them when one ends.

    python -m mgpu_trainers.apart --ranks 3 mgpu_trainers.pytorch.ps --steps 200

The job is over when rank 0 is, and ends as rank 0 did. Imports no framework.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from mgpu_trainers.lifeline import end_with_parent

Child = subprocess.Popen[bytes]
LOOKS_APART = 0.05
PATIENCE = 5.0
"""Seconds between asking ranks to end and ending them."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mgpu_trainers.apart")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("module")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, _leave)
    try:
        with tempfile.TemporaryDirectory() as folder:
            code = _run(args.module, args.options, args.ranks, Path(folder) / "meeting")
    except _AskedError as asked:  # just before or after there were ranks
        code = -asked.signal
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        signal.raise_signal(-code)
    return code


def _run(module: str, options: Sequence[str], ranks: int, meeting: Path) -> int:
    """The exit code; below 0: the signal that we were asked to end by."""
    children: list[Child] = []
    try:
        for rank in range(ranks):
            place = {**os.environ, **_place(rank, ranks, meeting)}
            command = [sys.executable, "-m", module, *options]
            children.append(subprocess.Popen(command, env=place, preexec_fn=end_with_parent))  # noqa: PLW1509  # one thread
        code = watch(module, children)
        patience = (None,) if children[0].poll() is not None else ()
        end(children, *patience, subprocess.Popen.terminate, subprocess.Popen.kill)
        return code if code >= 0 else 128 - code
    except _AskedError as asked:
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_IGN)
        end(children, subprocess.Popen.terminate, subprocess.Popen.kill)
        return -asked.signal


def _place(rank: int, ranks: int, meeting: Path) -> dict[str, str]:
    """What torchrun would tell a rank, and where all meet: a file, as a port could be taken."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "INIT_METHOD": meeting.as_uri(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def watch(name: str, children: Sequence[Child]) -> int:
    """Waits for rank 0: how it ended, negative for a signal. Says of each death what follows.

    A server that stands does not notice that nobody is left: 1, and it is left to be ended."""
    told = set[int]()
    alone_since: float | None = None
    while True:
        dead = {rank: code for rank, child in enumerate(children) if (code := child.poll())}
        if children[0].poll() is not None:
            if 0 in dead:
                _say(f"{name}: rank 0, the server, {_how(dead[0])}; without it nobody can learn")
            return children[0].returncode
        for rank in dead.keys() - told:
            _say(f"{name}: rank {rank} {_how(dead[rank])}; the others go on")
        told |= dead.keys()
        if len(dead) == len(children) - 1 > 0:
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > PATIENCE:
                _say(f"{name}: rank 0, the server, goes on without workers; ending it")
                return 1
        time.sleep(LOOKS_APART)


def end(children: Sequence[Child], *acts: Callable[[Child], None] | None) -> None:
    """Does one thing after the other to ranks that are left; None: lets them end by themselves."""
    for act in acts:
        until = time.monotonic() + PATIENCE
        for child in children:
            if act is not None and child.poll() is None:
                act(child)
        while time.monotonic() < until and any(child.poll() is None for child in children):
            time.sleep(LOOKS_APART)


def _how(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class _AskedError(Exception):
    """The launcher was asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def _leave(number: int, _frame: object) -> NoReturn:
    raise _AskedError(number)


if __name__ == "__main__":
    sys.exit(main())
