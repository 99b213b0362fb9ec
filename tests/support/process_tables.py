"""Writes a pretend /proc: processes as text files in the layout of proc(5)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

TORCH = "/venv/lib/torch/lib/libtorch_cpu.so"
TENSORFLOW = "/venv/lib/tensorflow/libtensorflow_framework.so.2"
TICKS = os.sysconf("SC_CLK_TCK")


class ProcTable:
    """Processes start one clock tick apart, in the order in which they are added."""

    def __init__(self, folder: Path, uptime: float = 10_000.0) -> None:
        self.proc = folder
        (folder / "uptime").write_text(f"{uptime} 0.00\n")

    def add(
        self,
        pid: int,
        parent: int,
        command: str | Sequence[str] = "python train.py",
        environment: Mapping[str, object] | None = None,
        *,
        state: str = "S",
        name: str | None = None,
        maps: Sequence[str] = (),
        threads: Sequence[str] = (),
        files: Sequence[str] = (),
        cpu_seconds: float = 1.0,
        cgroup: str = "0::/\n",
        uid: int = 1000,
        inner_pid: int | None = None,
        program: str | None = None,
        network: str = "net:[1]",
        flags: int = 0,
    ) -> None:
        """Adds a process. `environment` None: it is not readable. A zombie (state Z) has neither a
        command nor an environment."""
        folder = self.proc / str(pid)
        folder.mkdir()
        words = command.split() if isinstance(command, str) else list(command)
        name = name or Path(words[0]).name[:15]
        fields = [str(number) for number in range(3, 53)]
        fields[0], fields[1], fields[6] = state, str(parent), str(flags)
        fields[11], fields[12] = str(int(cpu_seconds * TICKS)), "0"
        fields[19] = str(1000 + len(list(self.proc.iterdir())))
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        numbers = f"{pid}\t{inner_pid}" if inner_pid is not None else f"{pid}"
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\nNSpid:\t{numbers}\n")
        (folder / "cgroup").write_text(cgroup)
        dead = state == "Z"
        (folder / "cmdline").write_text("" if dead else "".join(f"{word}\0" for word in words))
        if environment is not None:
            pairs = "" if dead else "".join(f"{key}={word}\0" for key, word in environment.items())
            (folder / "environ").write_text(pairs)
            lines = (f"7f00-7f01 r--p 0 0:0 0 {path}\n" for path in maps)
            (folder / "maps").write_text("".join(lines))
            (folder / "exe").symlink_to(program or words[0])
            (folder / "ns").mkdir()
            (folder / "ns/net").symlink_to(network)
        for number, thread in enumerate((name, *threads)):
            task = folder / "task" / str(pid + number)
            task.mkdir(parents=True)
            (task / "comm").write_text(f"{thread}\n")
        (folder / "fd").mkdir()
        for number, path in enumerate(files):
            (folder / "fd" / str(number)).symlink_to(path)


def elastic(rank: int, world: int, port: int = 29500, run: str = "run1") -> dict[str, object]:
    """The environment that torchrun gives to a rank on a single host."""
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": run,
    }


def by_hand(
    rank: int, world: int, address: str = "127.0.0.1", port: int = 29500
) -> dict[str, object]:
    """The environment of a rank that a user started in a shell."""
    return {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": address, "MASTER_PORT": port}
