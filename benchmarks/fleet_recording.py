"""A recording of a large job that never ran, as many hosts would have left it.

    python -m benchmarks.fleet_recording FOLDER [--ranks 10000] [--steps 1000]

Each box is written by the probe's own writer; then its pid, host and clock are set to those of the
pretended rank, and it is copied without the empty pages that the writer reserves (1.8 MiB a box).
All ranks leave a step's collective together. Rank `SLOW` waits `LATE` longer for its data. The
ranks train on CPUs: on GPUs only some steps would be timed, and the analysis would have less to do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import struct
import tempfile
from functools import partial
from math import nan
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer

from mgpu_doctor.recording.layout import BOXES, END, HOST_SAMPLES, HOSTS, INFO, SCHEMA

A_HOST = 8
"""Ranks on each host."""
SLOW = 4711
STARTED = 1_790_000_000
STEP = 0.1
LATE = 0.06
"""Seconds a step; enough to be the latest of ten thousand noisy ranks most of the time."""
SHARES = {
    layout.INPUT: 0.02,
    layout.FORWARD: 0.33,
    layout.BACKWARD: 0.55,
    layout.OPTIMIZER: 0.10,
}
"""Of a healthy rank's own work."""
MOVING = 0.005
SAMPLES = 20
"""Lines of host.jsonl."""
PAGE = 4096
PID_AT = struct.calcsize("=8sHHI" + "I" * 13 + "4x")
HOST_AT = layout.IDENTITY.size - 64


def write(folder: Path, ranks: int, steps: int) -> int:
    """Makes the recording; returns the rank that is slow."""
    folder.mkdir(parents=True, mode=0o700)
    slow = slow_rank(ranks)
    own_work = _own_work(ranks, steps)
    late = np.zeros(ranks, np.float32)
    late[slow] = LATE
    latest = (own_work + late).max(axis=1)
    hosts = range((ranks + A_HOST - 1) // A_HOST)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        pool.map(partial(_host, folder, own_work, late, latest), hosts, chunksize=8)
    seconds = float(latest.sum()) + MOVING * steps
    info = {
        "schema": SCHEMA,
        "id": folder.name,
        "kind": "run",
        "command": ["torchrun", f"--nnodes={len(hosts)}", f"--nproc-per-node={A_HOST}", "train.py"],
        "cwd": "/nowhere",
        "host": _name(0),
        "started": STARTED,
        "probe": True,
    }
    (folder / INFO).write_text(json.dumps(info))
    end = {"exit_code": 0, "signal": None, "ended": STARTED + seconds + 5, "asked": None}
    (folder / END).write_text(json.dumps(end))
    return slow


def slow_rank(ranks: int) -> int:
    return min(SLOW, ranks - 1)


def _own_work(ranks: int, steps: int) -> npt.NDArray[np.float32]:
    """(T, R) seconds: 3 % noise; 1 % of the steps take up to half as long again."""
    random = np.random.default_rng(1)
    noise = random.standard_normal((steps, ranks), dtype=np.float32)
    own_work: npt.NDArray[np.float32] = np.float32(STEP) * np.exp(np.float32(0.03) * noise)
    spiking = random.random(own_work.shape, dtype=np.float32) < 0.01
    own_work[spiking] *= 1 + 0.5 * random.random(int(spiking.sum()), dtype=np.float32)
    return own_work


def _name(host: int) -> str:
    return f"node{host:04}"


def _host(
    folder: Path,
    own_work: npt.NDArray[np.float32],
    late: npt.NDArray[np.float32],
    latest: npt.NDArray[np.float32],
    host: int,
) -> None:
    place = folder / HOSTS / _name(host)
    (place / BOXES).mkdir(parents=True, mode=0o700)
    count = own_work.shape[1]
    ranks = range(host * A_HOST, min(count, (host + 1) * A_HOST))
    seconds = float(latest.sum()) + MOVING * len(latest)
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as spare:
        for rank in ranks:
            pid = 2000 + rank % A_HOST
            box = _box(
                Path(spare),
                rank,
                world=count,
                own_work=own_work[:, rank],
                late=float(late[rank]),
                latest=latest,
            )
            _pretend(box, pid, _name(host), seconds)
            _copy(box, place / BOXES / f"{_name(host)}.{pid}.0{layout.BOX_SUFFIX}")
            box.unlink()
    with (place / HOST_SAMPLES).open("w", encoding="utf-8") as lines:
        for number in range(SAMPLES):
            lines.write(json.dumps(_sample(host, len(ranks), seconds * number / SAMPLES)) + "\n")


def _box(
    spare: Path,
    rank: int,
    *,
    world: int,
    own_work: npt.NDArray[np.float32],
    late: float,
    latest: npt.NDArray[np.float32],
) -> Path:
    writer = Writer.open(spare, rank=rank, local_rank=rank % A_HOST, world_size=world)
    birth = {
        "framework": "torch",
        "strategy": "ddp",
        "device": "cpu",  # every step is timed: on a device it would be one in several
        "argv": ["train.py"],
        "launcher": "torchrun",
        "local_world_size": A_HOST,
    }
    writer.birth(birth)
    writer.words[layout.NOW_SITE // 8] = writer.site("all_reduce train.py:87")
    phases = [nan] * len(layout.PHASES)
    clock = 0
    for number, (work, until) in enumerate(zip(own_work.tolist(), latest.tolist(), strict=True)):
        for phase, share in SHARES.items():
            phases[phase] = work * share
        phases[layout.INPUT] += late
        phases[layout.WAIT] = until - work - late + MOVING
        wall = round((until + MOVING) * 1e9)
        clock += wall
        writer.step(clock, wall, number, 0, phases, 32, 0, nan, 0.0, 10 + 3 * number, 3, 1)
    writer.state(layout.ENDED_CLEAN)
    writer.leave(0)
    writer.close()
    return Path(writer.path)


def _pretend(box: Path, pid: int, host: str, seconds: float) -> None:
    """What the writer takes from the machine it runs on becomes that of a rank elsewhere, which
    trained for so long."""
    with box.open("r+b") as file:
        file.seek(PID_AT)
        file.write(struct.pack("=IIQqq16s", pid, 1999, 0, STARTED * 10**9, 0, b"node of a fleet."))
        file.seek(layout.ENDED)
        file.write(struct.pack("=Q", int(seconds * 1e9)))
        file.seek(HOST_AT)
        file.write(host.encode().ljust(64, b"\0"))


def _copy(box: Path, to: Path) -> None:
    """A sparse copy: pages of zeros become holes."""
    raw = box.read_bytes()
    with to.open("xb") as file:
        for page in np.flatnonzero(np.frombuffer(raw, "u8").reshape(-1, PAGE // 8).any(axis=1)):
            file.seek(int(page) * PAGE)
            file.write(raw[int(page) * PAGE : (int(page) + 1) * PAGE])
        file.truncate(len(raw))


def _sample(host: int, ranks: int, since: float) -> dict[str, object]:
    """A line of host.jsonl: a quiet machine of 64 cores."""
    pids = [str(2000 + number) for number in range(ranks)]
    task = {"parent": 1999, "age": since, "state": "R", "threads": 70, "faults": 10**5}
    times = {"kernel": 0.02 * since, "ran": 0.9 * since, "queued": 0.001 * since}
    return {
        "at": STARTED + since,
        "host": _name(host),
        "cpu_percent": 14.0,
        "cores": 64,
        "load1": 9.0,
        "memory_used": 200 << 30,
        "memory_total": 1 << 40,
        "processes": {pid: [1.2 * since, 8 << 30] for pid in pids},
        "tasks": {pid: {**task, **times, "all_queued": 0.002 * since} for pid in pids},
        "groups": {},
        "busy": 9.0 * since,
        "iowait": 0.1 * since,
        "steal": 0.0,
        "pressure": {"cpu": 0.0, "io": 0.0, "memory": 0.0},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    slow = write(arguments.folder, arguments.ranks, arguments.steps)
    print(
        f"{arguments.folder}: {arguments.ranks:,} ranks, {arguments.steps:,} steps; "
        f"rank {slow} is slow"
    )


if __name__ == "__main__":
    main()
