"""Runs a program that may hang or print endlessly, with limits of time and output."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

GRACE = 0.5
"""Seconds that a killed program has to end. A program in an uninterruptible system call ends later,
without being waited for."""
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class BoundedRun:
    """`code`: exit code, negative for a signal; None: it had to be killed, because it took too
    long (`late`) or printed too much."""

    code: int | None
    out: bytes
    err: bytes
    late: bool = False


def run_bounded(
    command: Sequence[str], *, seconds: float, most: int, env: Mapping[str, str] | None = None
) -> BoundedRun:
    """The result of a program that may run for `seconds` and print `most` bytes.

    Raises OSError if it cannot be started.
    """
    end = time.monotonic() + seconds
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else {**os.environ, **env},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        out, err, whole = _drain(process.stdout, process.stderr, end, most)
        if whole:
            with suppress(subprocess.TimeoutExpired):
                return BoundedRun(process.wait(max(0.0, end - time.monotonic())), out, err)
        return BoundedRun(None, out, err, late=time.monotonic() >= end)
    finally:
        process.stdout.close()
        process.stderr.close()
        if process.poll() is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)


def _drain(out: IO[bytes], err: IO[bytes], end: float, most: int) -> tuple[bytes, bytes, bool]:
    """The output of both streams, and whether it is complete."""
    read: dict[IO[bytes], list[bytes]] = {out: [], err: []}
    left = most
    with selectors.DefaultSelector() as selector:
        for stream in read:
            selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map() and left > 0:
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                break
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE)
                if piece:
                    read[key.data].append(piece)
                    left -= len(piece)
                else:
                    selector.unregister(key.fileobj)
        whole = not selector.get_map()
    return b"".join(read[out]), b"".join(read[err]), whole
