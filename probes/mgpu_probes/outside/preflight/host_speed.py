"""How fast this host computes, copies memory and reads a disk.

Speeds of cores and memory are per second that a thread really ran: other processes and quotas do
not change them much. How many cores the test got is a figure of its own."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from mgpu_probes.outside import cgroups, disk_space
from mgpu_probes.outside.preflight.contention_meter import ContentionMeter

Json = dict[str, Any]

REPEATS = 5
ROUND_SECONDS = 0.2
"""Of one repetition of a test of cores or memory."""
MOST_THREADS, MOST_COPIERS = 64, 8
HASHED = 1 << 18
COPIED, FEW_COPIED = 64 << 20, 8 << 20
"""Bytes of one copy: more than a core's share of the last-level cache, unless memory is scarce."""
FILE_SIZE, READ_SIZE = 32 << 20, 128 << 10
"""Bytes of the file that is read, and of one read: a few samples of a data set."""
LEAST_FREE = 1 << 30
"""Bytes that must be free where the temporary file is written."""
DISK_SECONDS = 2.0
MOST_READS = 400
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


def measure_compute() -> Json:
    """`speeds`: bytes that one core hashes (SHA-256) per second, of each repetition; `cores`: how
    many it may use, also by its quota; `threads`: how many ran; `used`: cores that they got, of
    each repetition; `contention`; `hash`: what computes it, because only the same code compares."""
    cores = find_usable_cores()
    threads = max(1, min(math.ceil(cores), MOST_THREADS))
    block = bytes(HASHED)
    meter = ContentionMeter()
    rounds = [_run_each([lambda: _hash(block)] * threads) for _ in range(REPEATS)]
    return {
        "speeds": [speed for speed, _ in rounds],
        "used": [used for _, used in rounds],
        "cores": cores,
        "threads": threads,
        "hash": type(hashlib.sha256()).__module__,
        "contention": meter.read(),
    }


def find_usable_cores() -> float:
    """Cores of the affinity, or the CPU quota if that is less."""
    quotas = cgroups.find_cpu_quotas() or ()
    affinity = float(len(os.sched_getaffinity(0)))
    return min([affinity, *(quota.cores for quota in quotas)])


def _hash(block: bytes) -> int:
    hashlib.sha256(block).digest()  # other threads run meanwhile
    return len(block)


def measure_memory() -> Json:
    """`speeds`: bytes per second that all copying threads together copy, of each repetition;
    `threads`; `contention`."""
    threads = max(1, min(math.ceil(find_usable_cores()), MOST_COPIERS))
    room = _find_room()
    size = COPIED if room >= 8 * threads * COPIED else FEW_COPIED
    if room < 8 * threads * size:
        return {"trouble": f"only {room >> 20} MiB of memory are free"}
    copies = [_make_copy(size) for _ in range(threads)]
    meter = ContentionMeter()
    speeds = [_run_each(copies)[0] * threads for _ in range(REPEATS)]
    return {"speeds": speeds, "threads": threads, "size": size, "contention": meter.read()}


def _make_copy(size: int) -> Callable[[], int]:
    """What copies so many bytes; its memory has been used once, so that every page exists."""
    target, source = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)
    ctypes.memmove(target, source, size)

    def copy() -> int:
        ctypes.memmove(target, source, size)
        return size

    return copy


def _run_each(works: list[Callable[[], int]]) -> tuple[float, float]:
    """Runs each in a thread of its own for a while. Returns the median over the threads of bytes
    per second on a core, and the cores that they used together."""
    rates: list[float] = []
    spent: list[float] = []

    def run(work: Callable[[], int]) -> None:
        end, began, done = time.monotonic() + ROUND_SECONDS, time.thread_time(), 0
        while not done or time.monotonic() < end:
            done += work()
        seconds = max(1e-9, time.thread_time() - began)
        rates.append(done / seconds)
        spent.append(seconds)

    began = time.monotonic()
    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return median(rates), sum(spent) / max(1e-9, time.monotonic() - began)


def _find_room() -> int:
    """Bytes of memory that this process can take without swapping or reaching a limit; 0 if
    unknown."""
    room = 0
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key == "MemAvailable":
                    room = int(value.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        return 0
    limit = cgroups.find_memory_limit()
    used = limit.used()[0] if limit is not None else None
    return room if limit is None or used is None else max(0, min(room, limit.limit - used))


def measure_disk(folder: str | None) -> Json:
    """Reads random parts of a file that is not in the page cache. With `folder`, of files that are
    there; else of a temporary file without a name, which nothing can leave behind. `latencies`:
    seconds of each read of `size` bytes; `place`; `kind` of its file system; `trouble`: why nothing
    was read, else null."""
    place = folder or tempfile.gettempdir()
    report: Json = {"place": place, "kind": _find_kind(place), "size": READ_SIZE, "latencies": []}
    if report["kind"] in IN_MEMORY:
        return {**report, "trouble": "its files are in memory", "contention": None}
    free = disk_space.measure_disk_space(place)
    if folder is None and (free is None or free["free"] < LEAST_FREE):
        return {**report, "trouble": "too little space is free", "contention": None}
    meter = ContentionMeter()
    try:
        if folder is None:
            with tempfile.TemporaryFile(dir=place) as file:
                for _ in range(FILE_SIZE >> 20):
                    file.write(os.urandom(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                report["latencies"] = _read_randomly([file.fileno()])
        else:
            report["latencies"] = _read_files(folder)
    except OSError as error:
        return {**report, "trouble": error.strerror or str(error), "contention": None}
    trouble = None if report["latencies"] else f"no file of {READ_SIZE >> 10} KiB or more is there"
    return {**report, "trouble": trouble, "contention": meter.read()}


def _read_files(folder: str) -> list[float]:
    """Reads from up to 32 of the files below a folder."""
    paths = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            if os.path.isfile(path) and os.path.getsize(path) >= READ_SIZE:
                paths.append(path)
        if len(paths) >= 1000:
            break
    chosen = random.Random(0).sample(paths, min(32, len(paths)))
    descriptors: list[int] = []
    try:
        for path in chosen:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        return _read_randomly(descriptors) if descriptors else []
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _read_randomly(descriptors: list[int]) -> list[float]:
    sizes = [os.fstat(descriptor).st_size for descriptor in descriptors]
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    chance = random.Random(0)
    latencies: list[float] = []
    end = time.monotonic() + DISK_SECONDS
    while len(latencies) < MOST_READS and time.monotonic() < end:
        at = chance.randrange(len(descriptors))
        offset = chance.randrange(max(1, sizes[at] - READ_SIZE + 1))
        began = time.perf_counter()
        os.pread(descriptors[at], READ_SIZE, offset)
        latencies.append(time.perf_counter() - began)
    return latencies


def _find_kind(path: str) -> str | None:
    """The type of the file system at a path, from the longest mount point before it."""
    real, best, kind = os.path.realpath(path), -1, None
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, mount, name, *_ = line.split(" ")
                inside = real == mount or real.startswith(mount.rstrip("/") + "/")
                if inside and len(mount) >= best:
                    best, kind = len(mount), name
    except (OSError, ValueError):
        return None
    return kind
