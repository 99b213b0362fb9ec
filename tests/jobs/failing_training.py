"""Ranks that train a tiny model until one of them fails, in the way given by the options.

The lines at which it happens end in `# dies: HOW`.
"""

import argparse
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MIB = 1 << 20
UNDER_DDP = ("reentrant", "unused")
"""What only DistributedDataParallel refuses. The others reduce gradients and learn by hand: loading
DistributedDataParallel and torch.optim takes as long as loading torch."""
SIGNALS = {
    "kill": signal.SIGKILL,
    "abort": signal.SIGABRT,
    "bus": signal.SIGBUS,
    "hangup": signal.SIGHUP,
    "terminate": signal.SIGTERM,
}
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` leaves it ignored

if "import" in sys.argv:
    import a_package_that_is_not_installed  # type: ignore  # noqa: F401  # dies: import


class Samples(Dataset[torch.Tensor]):
    """`how`: what its `at`-th sample does to the process that makes it."""

    def __init__(self, how: str, at: int, values: int = 8) -> None:
        self.how = how
        self.at = at
        self.values = values

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        if index // 8 == self.at:
            if self.how == "loader":
                raise ValueError(f"sample {index} cannot be decoded")  # dies: loader
            if self.how == "loader-killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "loader-memory":
                fill_memory()
        return torch.full((self.values,), float(index))


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.never = nn.Linear(8, 8) if how == "unused" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.relu(self.first(x))
        if self.how == "reentrant":
            hidden = checkpoint(self.second, hidden, use_reentrant=True)
            hidden = checkpoint(self.second, hidden, use_reentrant=True)
        else:
            hidden = self.second(hidden)
        return hidden


def fill_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(8 * MIB))  # dies: memory


def spin() -> None:
    while True:
        sum(range(10_000))


def into_a_full_disk(folder: str) -> None:
    torch.save({"weights": torch.zeros(4 * MIB)}, f"{folder}/checkpoint.pt")  # dies: disk-full


def write_into_a_full_disk(folder: str) -> None:
    with open(f"{folder}/log.txt", "wb", buffering=0) as file:
        while True:
            file.write(bytes(MIB))  # dies: log-full


def open_too_many() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    kept = []
    while True:
        kept.append(open("/dev/null", "rb"))  # noqa: SIM115  # dies: open-files


def run_out_of_address_space() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 256 * MIB, used + 256 * MIB))
    fill_memory()


def load_a_bad_checkpoint(folder: str) -> None:
    file = Path(folder) / f"checkpoint-{os.getpid()}.pt"
    torch.save(nn.Linear(8, 8).state_dict(), file)
    file.write_bytes(file.read_bytes()[:-500])
    torch.load(file)  # dies: bad-checkpoint


def read_forbidden(folder: str) -> None:
    (Path(folder) / "there").mkdir(exist_ok=True)
    raise PermissionError(13, "Permission denied", f"{folder}/there")  # dies: permission


def a_thread_that_fails() -> None:
    thread = threading.Thread(target=int, args=("nothing",))
    thread.start()
    thread.join()


def abort_at_the_end() -> None:
    """When Python is down already, as a thread of gloo may do that lives too long."""
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc.abort, ctypes.c_void_p), None)


def leave_and_abort() -> None:
    abort_at_the_end()
    sys.exit(3)


def leave_with_a_sentence() -> None:
    sys.exit("no such data set: numbers")  # dies: told


def die(args: argparse.Namespace) -> None:
    how: str = args.how
    ways: dict[str, Callable[[], object]] = {
        "memory": run_out_of_address_space,
        "group-memory": fill_memory,
        "cpu-limit": spin,
        "open-files": open_too_many,
        "disk-full": lambda: into_a_full_disk(args.folder),
        "log-full": lambda: write_into_a_full_disk(args.folder),
        "bad-checkpoint": lambda: load_a_bad_checkpoint(args.folder),
        "permission": lambda: read_forbidden(args.folder),
        "thread": a_thread_that_fails,
        "exit-aborting": leave_and_abort,
        "end-aborting": abort_at_the_end,
        "told": leave_with_a_sentence,
    }
    if how in SIGNALS:
        os.kill(os.getpid(), SIGNALS[how])
        time.sleep(60)
    if how in ("raise", "raise-all"):
        raise ValueError("a bad batch")  # dies: raise
    if how == "shape":
        torch.ones(4, 8) @ torch.ones(9, 4)  # dies: shape
    if how in ways:
        ways[how]()


def batches(args: argparse.Namespace, mine: bool) -> Iterator[torch.Tensor]:
    how = args.how if mine else "none"
    # Index 8 × `at` and those after it make the batch of step `at`, whatever the number of ranks.
    samples = Samples(how, args.at, 64 * 1024 if args.how == "shm" else 8)
    workers = 1 if "loader" in args.how or args.how == "shm" else 0
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(samples, shuffle=False)
    batch = 64 if args.how == "shm" else 8 // dist.get_world_size()
    yield from DataLoader(samples, batch, sampler=sampler, num_workers=workers)


def join_group(args: argparse.Namespace, mine: bool) -> None:
    if args.group and (mine or args.how == "loader-memory"):
        Path(args.group, "cgroup.procs").write_text(str(os.getpid()))
    if mine and args.how == "cpu-limit":
        used = int(sum(os.times()[:2])) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 60))


def reduce_gradients(net: Net) -> None:
    gradients = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    dist.all_reduce(gradients)


def learn(net: Net) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=1e-9)
                parameter.grad = None


def train(local: int, args: argparse.Namespace) -> None:
    if args.port:
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(args.port),
            RANK=str(local),
            LOCAL_RANK=str(local),
            WORLD_SIZE=str(args.ranks),
        )
    if args.how == "world-size":
        os.environ["WORLD_SIZE"] = str(args.ranks + 1)
    torch.set_num_threads(1)
    mine = int(os.environ["RANK"]) == args.rank or args.how == "raise-all"
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.patience))
    net = Net(args.how if mine or args.how != "reentrant" else "none")
    model = DistributedDataParallel(net) if args.how in UNDER_DDP else net
    join_group(args, mine)
    for step, wide in enumerate(batches(args, mine)):
        if step == args.steps:
            break
        time.sleep(args.pause)
        x = wide[:, :8]
        if step == args.at and mine:
            die(args)
        model(x).sum().backward()  # dies: unused, reentrant
        if model is net:
            reduce_gradients(net)
        learn(net)
    dist.destroy_process_group()


def main() -> None:
    args = arguments()
    if not args.port:
        train(int(os.environ["LOCAL_RANK"]), args)
        return
    holder = socket.socket()
    if args.how == "port-in-use":
        holder.bind(("127.0.0.1", args.port))
        holder.listen()
    if args.how == "pickling":
        spawn(train, args=(lambda: args,), nprocs=args.ranks)  # dies: pickling
    spawn(train, args=(args,), nprocs=args.ranks)


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser()
    options.add_argument("how")
    options.add_argument("--rank", type=int, default=1)
    options.add_argument("--at", type=int, default=5)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--pause", type=float, default=0.02)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--patience", type=float, default=60)
    options.add_argument("--port", type=int, default=0, help="start the ranks by mp.spawn")
    options.add_argument("--folder", default="", help="to write into")
    options.add_argument("--group", default="", help="folder of a control group to join")
    return options.parse_args()


if "main-guard" in sys.argv:
    spawn(train, args=(arguments(),), nprocs=2)  # dies: main-guard

if __name__ == "__main__":
    main()
