"""Starts ranks that outlive each other; torchrun ends all of them when one ends.

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

from mgpu_trainers.process_lifetime import AskedToEnd, end_with_parent, ignore, raise_when_asked

Child = subprocess.Popen[bytes]
ASKING = (signal.SIGINT, signal.SIGTERM)
POLL_INTERVAL = 0.05
"""Seconds between two polls of the ranks."""
PATIENCE = 5.0
"""Seconds between asking ranks to end and ending them."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mgpu_trainers.apart")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("module")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    raise_when_asked(*ASKING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            code = _run(args.module, args.options, args.ranks, Path(folder) / "meeting")
    except AskedToEnd as request:  # just before or after there were ranks
        code = -request.signal
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        signal.raise_signal(-code)
    return code


def _run(module: str, options: Sequence[str], ranks: int, meeting: Path) -> int:
    """The exit code; negative: the signal that asked us to end."""
    children: list[Child] = []
    try:
        for rank in range(ranks):
            place = {**os.environ, **_environment(rank, ranks, meeting)}
            command = [sys.executable, "-m", module, *options]
            children.append(subprocess.Popen(command, env=place, preexec_fn=end_with_parent))  # noqa: PLW1509  # one thread
        code = wait_for_server(module, children)
        patience = (None,) if children[0].poll() is not None else ()
        end_children(children, *patience, subprocess.Popen.terminate, subprocess.Popen.kill)
        return code if code >= 0 else 128 - code
    except AskedToEnd as request:
        ignore(*ASKING)
        end_children(children, subprocess.Popen.terminate, subprocess.Popen.kill)
        return -request.signal


def _environment(rank: int, ranks: int, meeting: Path) -> dict[str, str]:
    """The variables torchrun would set, and where ranks meet: a file, as a port could be taken."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "INIT_METHOD": meeting.as_uri(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def wait_for_server(name: str, children: Sequence[Child]) -> int:
    """Waits for rank 0; its exit code, negative for a signal. Reports each death.

    A blocked server does not notice that no worker is left: then 1, and the caller ends it.
    """
    reported = set[int]()
    alone_since: float | None = None
    while True:
        dead = {rank: code for rank, child in enumerate(children) if (code := child.poll())}
        if children[0].poll() is not None:
            if 0 in dead:
                end = _describe_end(dead[0])
                _report(f"{name}: rank 0, the server, {end}; training cannot continue")
            return children[0].returncode
        for rank in dead.keys() - reported:
            _report(f"{name}: rank {rank} {_describe_end(dead[rank])}; the others go on")
        reported |= dead.keys()
        if len(dead) == len(children) - 1 > 0:
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > PATIENCE:
                _report(f"{name}: rank 0, the server, goes on without workers; ending it")
                return 1
        time.sleep(POLL_INTERVAL)


def end_children(children: Sequence[Child], *acts: Callable[[Child], None] | None) -> None:
    """Does one act after the other to ranks that are left; None: lets them end by themselves."""
    for act in acts:
        until = time.monotonic() + PATIENCE
        for child in children:
            if act is not None and child.poll() is None:
                act(child)
        while time.monotonic() < until and any(child.poll() is None for child in children):
            time.sleep(POLL_INTERVAL)


def _describe_end(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _report(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
