"""Ranks that train in step until one of them hangs, in the way given by the options."""

import argparse
import ctypes
import fcntl
import hashlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FOR_EVER = 100_000
STEPS_BETWEEN = 3
"""From one hang to the next, where several follow each other."""


class ReleasedError(Exception):
    """SIGUSR1 ended a hang."""


def release(*_: object) -> NoReturn:
    raise ReleasedError


def sleep_in_own_code() -> None:
    time.sleep(FOR_EVER)


def ask_again_and_again() -> None:
    while not Path("never").exists():
        time.sleep(0.01)


def take_a_lock_twice() -> None:
    lock = threading.Lock()
    with lock, lock:
        print("cannot happen")


def take_a_locked_file(path: Path) -> None:
    with path.open("w") as mine, path.open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        fcntl.flock(mine, fcntl.LOCK_EX)


def wait_for_a_thread() -> None:
    queue.Queue().get()


def read_an_empty_pipe() -> None:
    reader, writer = os.pipe()
    os.read(reader, 1)
    os.close(writer)


def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(FOR_EVER)


def spin() -> None:
    number = 0
    while number >= 0:
        number += 1


def match_for_ever() -> None:
    """A regular expression that backtracks holds the GIL in C all the time."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def hash_again_and_again() -> None:
    """Native code that releases the GIL, called in a loop of this function."""
    key = b"seed"
    while True:
        key = hashlib.pbkdf2_hmac("sha256", key, b"salt", 300_000)


def wait_for_a_child() -> None:
    subprocess.run(["sleep", str(FOR_EVER)], check=False)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    sys.stdout.flush()
    os._exit(0)


STANDS: dict[str, Callable[[], None]] = {
    "sleep": sleep_in_own_code,
    "poll": ask_again_and_again,
    "lock": take_a_lock_twice,
    "queue": wait_for_a_thread,
    "pipe": read_an_empty_pipe,
    "gil": hold_the_gil,
    "spin": spin,
    "regex": match_for_ever,
    "native": hash_again_and_again,
    "child": wait_for_a_child,
    "stop": stop,
    "leave": leave,
}


BEFORE_IT_JOINS: dict[str, Callable[[], None]] = {
    "never-start": sleep_in_own_code,
    "leave-early": leave,
}


class Samples(Dataset[torch.Tensor]):
    """Of which one is never made, where that is asked for."""

    def __init__(self, missing: int | None) -> None:
        self.missing = missing

    def __len__(self) -> int:
        return FOR_EVER

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.missing:
            take_a_lock_twice()
        return torch.full((16,), float(index))


class Job:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.chosen = self.rank == args.rank[0]
        self.hangs = [args.how, *args.then]
        self.mine = [rank == self.rank for rank in args.rank]
        """Which of the hangs; the last rank has all that follow."""
        self.numbers = torch.ones(1000)

    def mark(self, number: int = 0) -> None:
        """Writes this process's id where the test waits for it; the first mark has no number."""
        Path(f"{self.args.mark}{number or ''}").write_text(str(os.getpid()), encoding="utf-8")

    def start(self) -> None:
        if self.chosen and self.args.how in BEFORE_IT_JOINS:
            self.mark()
            BEFORE_IT_JOINS[self.args.how]()
        dist.init_process_group("gloo", timeout=timedelta(seconds=self.args.timeout))
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        self.model = DistributedDataParallel(model) if self.args.loop == ["ddp"] else model
        self.batches = self.data()

    def data(self) -> Iterator[torch.Tensor]:
        workers = 1 if self.args.how == "loader" else 0
        missing = self.args.at_step if self.args.how == "loader" and self.chosen else None
        return iter(DataLoader(Samples(missing), num_workers=workers))

    def batch(self, step: int) -> torch.Tensor:
        if self.args.how == "loader" and self.chosen and step == self.args.at_step:
            self.mark()
        return next(self.batches)

    def train(self) -> None:
        for step in range(self.args.steps):
            batch = self.batch(step)
            if self.args.how == "exhausted" and self.chosen and step == self.args.at_step:
                self.mark()
                break
            loss = self.forward(batch)
            number, rest = divmod(step - self.args.at_step, STEPS_BETWEEN)
            if self.args.place == "step" and rest == 0 and 0 <= number < len(self.hangs):
                self.stand(number)
            self.work()
            loss.backward()
            self.exchange(step)
            self.learn()
            if step == self.args.at_step and self.args.place != "step":
                self.between_steps(batch)
        dist.barrier()  # before the model is saved
        dist.destroy_process_group()

    def between_steps(self, batch: torch.Tensor) -> None:
        """What scripts do now and then, and where all ranks meet afterwards."""
        if self.args.place == "evaluation":
            with torch.no_grad():
                metric = self.evaluate(batch)
            dist.all_reduce(metric)
        elif self.args.place == "checkpoint":
            self.save()
            dist.barrier()
        else:
            self.stand()

    def evaluate(self, batch: torch.Tensor) -> torch.Tensor:
        self.stand()
        result: torch.Tensor = self.model(batch).mean()
        return result

    def save(self) -> None:
        self.stand()
        with tempfile.TemporaryFile() as file:
            torch.save(self.model.state_dict(), file)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(batch).mean()
        return result

    def work(self) -> None:
        """What one step costs; a late rank takes its time."""
        late = self.args.how == "late" and self.chosen
        prepare_slowly(self.args.late) if late else time.sleep(self.args.pause)

    def stand(self, number: int = 0) -> None:
        if not self.mine[min(number, len(self.mine) - 1)]:
            return
        name = self.hangs[number]
        self.mark(number)
        with suppress(ReleasedError):
            if name == "flock":
                take_a_locked_file(Path(f"{self.args.mark}-locked"))
            elif name in STANDS:
                STANDS[name]()

    def exchange(self, step: int) -> None:
        """What DDP does by itself, by hand: and where ranks can differ."""
        hang = max(0, (step - self.args.at_step) // STEPS_BETWEEN)
        loop = self.args.loop[min(hang, len(self.args.loop) - 1)]
        if loop == "pipeline":
            self.pass_on()
        elif self.chosen and step == self.args.at_step and self.args.how == "other-op":
            dist.broadcast(self.numbers, src=0)
        elif self.chosen and step == self.args.at_step and self.args.how == "skip":
            dist.barrier()  # where the others reduce
        elif loop == "reduce":
            dist.all_reduce(self.numbers)
        elif loop == "async":
            dist.all_reduce(self.numbers, async_op=True).wait()

    def learn(self) -> None:
        """Plain gradient descent: torch.optim takes seconds to import."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.001)
                    parameter.grad = None

    def pass_on(self) -> None:
        """A pipeline: each rank receives from the one before it and sends to the one after it."""
        if self.rank > 0:
            dist.recv(self.numbers, src=self.rank - 1)
        if self.rank + 1 < self.world:
            dist.send(self.numbers, dst=self.rank + 1)


def prepare_slowly(seconds: float) -> int:
    """Own code that takes its time."""
    end = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < end:
        turns += 1
    return turns


def start_ranks(many: int) -> int:
    """A launcher that looks after nobody: what a shell loop over ranks does."""
    port = os.environ.get("MASTER_PORT", "29555")
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(many),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(many)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("how", choices=(*STANDS, *OTHERS))
    options.add_argument(
        "--then", nargs="*", default=[], choices=(*STANDS, "flock"), help="after SIGUSR1 each time"
    )
    loops = ("ddp", "reduce", "async", "pipeline")
    options.add_argument(
        "--loop", nargs="+", choices=loops, default=["reduce"], help="one for each hang"
    )
    options.add_argument("--place", choices=PLACES, default="step")
    options.add_argument("--rank", type=int, nargs="+", default=[1], help="one for each hang")
    options.add_argument("--at-step", type=int, default=5)
    options.add_argument("--steps", type=int, default=FOR_EVER)
    options.add_argument("--pause", type=float, default=0.005)
    options.add_argument("--late", type=float, default=0.1)
    options.add_argument("--life", type=int, default=240, help="seconds until all ends by itself")
    options.add_argument("--timeout", type=float, default=1800.0, help="seconds, of collectives")
    options.add_argument("--mark", type=Path, default=Path(os.devnull), help="made as it begins")
    options.add_argument("--bare", type=int, help="start so many ranks without torchrun")
    args = options.parse_args()
    torch.set_num_threads(1)
    signal.alarm(args.life)
    signal.signal(signal.SIGUSR1, release)
    if args.bare and "RANK" not in os.environ:
        sys.exit(start_ranks(args.bare))
    job = Job(args)
    job.start()
    job.train()


PLACES = ("step", "evaluation", "checkpoint", "after-update")
OTHERS = ("healthy", "exhausted", "flock", "loader", "skip", "other-op", "late", *BEFORE_IT_JOINS)

if __name__ == "__main__":
    main()
