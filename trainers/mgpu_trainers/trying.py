"""The process that tries batches, as who asks it sees it. Imports no framework."""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mgpu_trainers.search import Tried

LONGEST = 120.0
"""Seconds that one try may take."""
_TRIES = "from mgpu_trainers.pytorch.common.trial import main; main()"
_COUNTS = (
    "import torch; n = torch.cuda.device_count(); "
    "print(n, min([torch.cuda.mem_get_info(i)[0] for i in range(n)], default=0))"
)


def gpus() -> tuple[int, int]:
    """How many there are, and the free bytes of the one with the least."""
    ended = subprocess.run(
        python(_COUNTS), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    words = ended.stdout.split()
    return (int(words[0]), int(words[1])) if ended.returncode == 0 and len(words) == 2 else (0, 0)


def python(program: str) -> list[str]:
    """Without what stands in PYTHON… variables: nobody shall take a try for the training."""
    own = str(Path(__file__).resolve().parent.parent)
    path = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    return [sys.executable, "-E", "-c", path + program, "\n".join((own, *sys.path))]


class Trial:
    """Asks the process that tries; one that it killed, or that took too long, did not fit."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until `end`
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self._process = process
        answer = self._answer()
        if answer is None:
            self._said.seek(0)
            said = self._said.read(100_000).strip().splitlines() or ["it said nothing"]
            sys.exit(f"--batch auto: the process that tries batches failed: {said[-1][:300]}")
        self.samples = int(answer["samples"])
        return process

    def fits(self, size: int) -> Tried | None:
        if self._process.poll() is not None:
            self._start()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{size}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer is None or not answer["fits"]:
            return None
        return Tried(float(answer["seconds"]), int(answer["bytes"]))

    def _answer(self) -> dict[str, float] | None:
        assert self._process.stdout is not None
        late = threading.Timer(LONGEST, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        if not line:
            self._process.wait()
            return None
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


@contextmanager
def trial(options: argparse.Namespace, device: str, room: int) -> Iterator[Trial]:
    names = ("model", "precision", "checkpointing", "threads")
    settings = [text for name in names for text in (f"--{name}", str(getattr(options, name)))]
    trying = Trial([*python(_TRIES), *settings, "--device", device, "--room", str(room)])
    try:
        yield trying
    finally:
        trying.end()
