"""Traces as Kineto writes them, of a data-parallel job on GPUs that is simulated: the layout is
that of torch 2.13's CUDA traces; nothing here was recorded on a GPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]
EPOCH = 4_505_508_103_395.736
"""Microseconds: where a real trace began."""
NEW = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OLD = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
COMPUTE, COMMUNICATION = 7, 20


@dataclass(frozen=True, slots=True)
class Job:
    """Microseconds throughout."""

    ranks: int = 4
    steps: int = 8
    kernels: int = 40
    """A step, half of them in backward."""
    kernel: float = 200.0
    launch: float = 6.0
    """Of the host, for each kernel."""
    buckets: int = 4
    transfer: float = 300.0
    """Of one bucket."""
    overlap: bool = True
    """Buckets leave while backward computes, rather than after it."""
    loader: float = 50.0
    once: float = 0.0
    """Of the host, in the first step alone, such as compiling."""
    jitter: float = 0.01
    slow: Mapping[int, float] = field(default_factory=dict)
    """Rank -> how many times longer its kernels take."""
    slow_loader: Mapping[int, float] = field(default_factory=dict)
    collective: str = NEW
    operators: int = 2
    """Nested host operators a kernel."""
    seed: int = 1


def simulate(job: Job) -> list[list[Json]]:
    """The events of every rank."""
    return _Run(job).events()


class _Run:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks = [_Writer(rank) for rank in range(job.ranks)]
        self.random = np.random.default_rng(job.seed)

    def events(self) -> list[list[Json]]:
        for step in range(self.job.steps):
            self._step(step)
        return [rank.events for rank in self.ranks]

    def _step(self, step: int) -> None:
        job = self.job
        begun = [rank.host for rank in self.ranks]
        ready = []
        for rank, writer in enumerate(self.ranks):
            writer.batch(self._loader(rank))
            half = job.kernels // 2
            for index in range(half):
                writer.launch(f"void gemm_{index % 8}<float>", self._kernel(rank), job)
            times = []
            for index in range(half):
                writer.launch(f"void wgrad_{index % 8}<float>", self._kernel(rank), job)
                times.append(writer.device)
            places = [half * (number + 1) // job.buckets - 1 for number in range(job.buckets)]
            ready.append([times[place] if job.overlap else times[-1] for place in places])
        done = [rank.wire for rank in self.ranks]
        for bucket in range(job.buckets):
            starts = [max(ready[rank][bucket], done[rank]) + 2 for rank in range(job.ranks)]
            end = max(starts) + self._jittered(job.transfer)
            for rank, writer in enumerate(self.ranks):
                writer.collective(job, step * job.buckets + bucket, starts[rank], end)
                done[rank] = end
        for rank, writer in enumerate(self.ranks):
            writer.wire = done[rank]
            writer.device = max(writer.device, done[rank])
            writer.host += 0.0 if step else job.once
            writer.launch("void multi_tensor_apply_kernel<sgd>", self._jittered(job.kernel), job)
            writer.synchronize()
            writer.note(f"ProfilerStep#{step}", begun[rank], writer.host)

    def _kernel(self, rank: int) -> float:
        return self._jittered(self.job.kernel) * self.job.slow.get(rank, 1.0)

    def _loader(self, rank: int) -> float:
        return self._jittered(self.job.slow_loader.get(rank, self.job.loader))

    def _jittered(self, usual: float) -> float:
        return float(usual * (1 + self.job.jitter * abs(self.random.standard_normal())))


class _Writer:
    """One rank's clocks and events."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.host = self.device = self.wire = 0.0
        self.events: list[Json] = []
        self._correlation = 1000

    def batch(self, length: float) -> None:
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        self.note(name, self.host, self.host + length)
        self.host += length
        self._copy("Memcpy HtoD (Pinned -> Device)", 40.0)

    def launch(self, name: str, length: float, job: Job) -> None:
        for level in range(job.operators):
            nested = job.launch * (1 - level * 0.1)
            self._event("cpu_op", f"aten::op_{level}", self.host + level * 0.1, nested, args=_HOST)
        call = self._call("cudaLaunchKernel", self.host + job.launch / 2, job.launch / 3)
        self.host += job.launch
        start = max(self.host + 1, self.device + 1)
        self._on_device("kernel", name, COMPUTE, start, length, call, _KERNEL)
        self.device = start + length

    def collective(self, job: Job, sequence: int, start: float, end: float) -> None:
        call = self._call("cudaLaunchKernelExC", self.host, 4.0)
        arguments = {**_KERNEL, **_COLLECTIVE, "Group size": job.ranks, "Seq": sequence}
        arguments["Process Group Ranks"] = str([*range(job.ranks)])
        self._on_device(
            "kernel", job.collective, COMMUNICATION, start, end - start, call, arguments
        )

    def synchronize(self) -> None:
        self._call("cudaDeviceSynchronize", self.host, max(1.0, self.device - self.host))
        self.host = max(self.host, self.device) + 5

    def note(self, name: str, start: float, end: float) -> None:
        self._event("user_annotation", name, start, end - start, args={"External id": 1})

    def _copy(self, name: str, length: float) -> None:
        call = self._call("cudaMemcpyAsync", self.host, 5.0)
        self.host += 6.0
        start = max(self.host, self.device)
        arguments = {"bytes": 1 << 20, "memory bandwidth (GB/s)": 26.2}
        self._on_device("gpu_memcpy", name, COMPUTE, start, length, call, arguments)
        self.device = start + length

    def _call(self, name: str, start: float, length: float) -> int:
        self._correlation += 1
        args = {"External id": 5, "cbid": 211, "correlation": self._correlation}
        self._event("cuda_runtime", name, start, length, args=args)
        return self._correlation

    def _on_device(  # noqa: PLR0917
        self,
        cat: str,
        name: str,
        stream: int,
        start: float,
        length: float,
        call: int,
        arguments: Json,
    ) -> None:
        args = {
            "device": self.rank,
            "context": 1,
            "stream": stream,
            "correlation": call,
            **arguments,
        }
        self._event(cat, name, start, length, pid=self.rank, tid=stream, args=args)

    def _event(
        self,
        cat: str,
        name: str,
        start: float,
        length: float,
        *,
        args: Json,
        pid: int | None = None,
        tid: int | None = None,
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 4000 + self.rank if pid is None else pid,
                "tid": 4000 + self.rank if tid is None else tid,
                "ts": round(EPOCH + start, 3),
                "dur": round(length, 3),
                "args": args,
            }
        )


_HOST = {"External id": 1, "Record function id": 0, "Ev Idx": 2}
_KERNEL = {
    "External id": 5,
    "queued": 0,
    "registers per thread": 96,
    "shared memory": 0,
    "blocks per SM": 1.5,
    "warps per SM": 12.0,
    "grid": [198, 1, 1],
    "block": [256, 1, 1],
    "est. achieved occupancy %": 38,
}
_COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 6_553_600,
    "Out msg nelems": 6_553_600,
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "dtype": "Float",
}


def lines(events: Iterable[Json], rank: int | None, world: int | None) -> Iterator[str]:
    """The file, as Kineto lays it out."""
    arguments = {"backend": "nccl", "rank": rank, "world_size": world}
    yield '{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  '
    if rank is not None:
        yield f'"distributedInfo": {json.dumps(arguments)},\n  "host_name": "node-{rank // 8}",\n  '
    yield '"displayTimeUnit": "ms",\n  "traceEvents": [\n'
    yield ",\n  ".join(map(_line, events))
    yield '\n  ],\n  "traceName": "made.json"\n}\n'


def _line(event: Json) -> str:
    """As Kineto's output_json.cpp breaks it."""
    return (
        f'{{\n    "ph": "X", "cat": "{event["cat"]}", "name": {_quoted(event["name"])}, '
        f'"pid": {event["pid"]}, "tid": {event["tid"]},\n    "ts": {event["ts"]:.3f}, '
        f'"dur": {event["dur"]:.3f},\n    "args": {{\n      '
        f"{json.dumps(event['args'])[1:-1]}\n    }}\n  }}"
    )


@cache
def _quoted(name: str) -> str:
    return json.dumps(name)


def written(folder: Path, job: Job, *, packed: bool = False, leave_out: Iterable[int] = ()) -> Path:
    """A file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = set(leave_out)
    for rank, events in enumerate(simulate(job)):
        if rank in missing:
            continue
        whole = lines(events, rank, job.ranks)
        if packed:
            with gzip.open(folder / f"trace_{rank}.json.gz", "wt", compresslevel=1) as file:
                file.writelines(whole)
        else:
            with open(folder / f"trace_{rank}.json", "w") as file:
                file.writelines(whole)
    return folder
