"""GPUs and collectives, tested by the host's own PyTorch in a process of its own:

    python -c TEXT OPTIONS

OPTIONS is a JSON object. This text needs nothing but torch. It prints one line of JSON after
`MARK`, and ends with its standard input."""

import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

MARK = "mgpu-doctor preflight: "
NO_TORCH = "no-torch"
REPEATS = 5
MATRIX = 8192
COPIED = 256 << 20
"""Bytes on the device and between devices."""
HOST_COPIED = 64 << 20
SMALL, LARGE = 1 << 10, 4 << 20
"""Elements (float32) of the all-reduces: one that is latency alone, one of a gradient bucket."""
SMALL_CALLS, LARGE_CALLS = 30, 8
COLLECTIVE_SECONDS = 30.0
"""After which a collective counts as failed."""
LONGEST = 3.0
"""Seconds of calls of one size after which no further one is made."""
MOST_LINKED = 8
"""Devices between which each pair is tested."""


def end_with_input() -> None:
    """Ends this process when whoever started it has ended."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def test_devices(torch: Any) -> dict[str, Any]:
    """The speeds of each GPU and of the copies between two."""
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "runtime": torch.version.hip or torch.version.cuda,
        "devices": [],
        "links": [],
    }
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        report["devices"].append(test_device(torch, index))
    for source in range(min(count, MOST_LINKED)):
        for target in range(min(count, MOST_LINKED)):
            if source != target:
                report["links"].append(test_copies(torch, source, target))
    return report


def test_device(torch: Any, index: int) -> dict[str, Any]:
    """`used`: bytes in use before the test; `flops` (of bf16 products), `memory` (bytes copied per
    second on the device), `to_device`, `to_host`: of each repetition; `trouble`."""
    facts: dict[str, Any] = {"index": index, "name": torch.cuda.get_device_name(index)}
    facts.update(used=0, flops=[], memory=[], to_device=[], to_host=[], trouble=None)
    try:
        free, total = torch.cuda.mem_get_info(index)
        facts["used"] = total - free
        with torch.cuda.device(index):
            facts["flops"] = time_products(torch)
            facts.update(time_device_copies(torch))
    except Exception as error:
        facts["trouble"] = describe(error)
    return facts


def time_products(torch: Any) -> list[float]:
    left = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(8):
            torch.mm(left, left, out=out)

    return rates(torch, 8 * 2.0 * MATRIX**3, multiply)


def time_device_copies(torch: Any) -> dict[str, list[float]]:
    source = torch.ones(COPIED, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    host = torch.ones(HOST_COPIED, dtype=torch.uint8).pin_memory()
    part = source[:HOST_COPIED]

    def copy() -> None:
        for _ in range(8):
            target.copy_(source)

    return {
        "memory": rates(torch, 8 * COPIED, copy),
        "to_device": rates(torch, HOST_COPIED, lambda: part.copy_(host, non_blocking=True)),
        "to_host": rates(torch, HOST_COPIED, lambda: host.copy_(part, non_blocking=True)),
    }


def rates(torch: Any, amount: float, work: Any) -> list[float]:
    """`amount` per second, of each repetition, by the device's own clock."""
    work()
    found = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        found.append(amount / max(1e-9, begin.elapsed_time(end) * 1e-3))
    return found


def test_copies(torch: Any, source: int, target: int) -> dict[str, Any]:
    """Bytes per second from one device to another; `trouble`: why not, or not often enough."""
    speeds: list[float] = []
    link: dict[str, Any] = {"source": source, "target": target, "speeds": speeds, "trouble": None}
    try:
        there = torch.ones(HOST_COPIED, device=f"cuda:{source}", dtype=torch.uint8)
        here = torch.empty(HOST_COPIED, device=f"cuda:{target}", dtype=torch.uint8)
        for repetition in range(REPEATS + 1):
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)
            began = time.perf_counter()
            here.copy_(there)
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)
            if repetition:
                speeds.append(HOST_COPIED / (time.perf_counter() - began))
    except Exception as error:
        link["trouble"] = describe(error)
    return link


def test_collective(torch: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds of small and of large all-reduces of all ranks. `trouble`: why they failed."""
    import torch.distributed as dist

    report: dict[str, Any] = {"torch": torch.__version__, "small": [], "large": [], "trouble": None}
    rank, world, backend = options["rank"], options["world"], options["backend"]
    device = "cpu"
    if options.get("interface"):
        os.environ.update(
            GLOO_SOCKET_IFNAME=options["interface"], NCCL_SOCKET_IFNAME=options["interface"]
        )
    try:
        if backend == "nccl":
            torch.cuda.set_device(options["local_rank"])
            device = "cuda"
        dist.init_process_group(
            backend,
            init_method=options["meeting"],
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )
        for name, size, calls in (("small", SMALL, SMALL_CALLS), ("large", LARGE, LARGE_CALLS)):
            report[name], total = time_all_reduces(torch, size, calls, device)
            if total != float(world):
                report["trouble"] = f"its sum is {total:g} instead of {world}"
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        report["trouble"] = describe(error)
    return report


def time_all_reduces(torch: Any, size: int, calls: int, device: str) -> tuple[list[float], float]:
    """Seconds of each call, after a first one, and the sum that the last one found. All ranks stop
    early if a call takes long."""
    import torch.distributed as dist

    values, longest = torch.ones(size, device=device), torch.zeros(1, device=device)
    seconds: list[float] = []
    for _ in range(calls + 1):
        values.fill_(1.0)
        wait_for_device(torch, device)
        began = time.perf_counter()
        dist.all_reduce(values)
        wait_for_device(torch, device)
        seconds.append(time.perf_counter() - began)
        longest.fill_(sum(seconds))
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        if float(longest[0]) > LONGEST:
            break
    return seconds[1:] or seconds, float(values[0])


def wait_for_device(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def describe(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def main() -> None:
    options = json.loads(sys.argv[1])
    threading.Thread(target=end_with_input, daemon=True).start()
    try:
        import torch
    except ImportError as error:
        missing = getattr(error, "name", None) == "torch"
        report: dict[str, Any] = {"trouble": NO_TORCH if missing else describe(error)}
    else:
        torch.set_num_threads(1)
        run = options["test"] == "collective"
        report = test_collective(torch, options) if run else test_devices(torch)
    sys.stdout.write(f"\n{MARK}{json.dumps(report)}\n")
    sys.stdout.flush()
    os._exit(0)  # frameworks may wait for each other at the end


if __name__ == "__main__":
    main()
