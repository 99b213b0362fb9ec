"""What other versions print, and whole logs of jobs that really failed: which signatures fit."""

from __future__ import annotations

from functools import cache

import pytest
from mgpu_probes.outside.logs.log_scanner import Engine

from tests.support.all_signatures import ALL_SIGNATURES, CONSOLE, codes_of, ids_of


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "DataLoader process (pid   71) exited is killed by signal: Killed",
            "loader-worker-killed",
        ),
        (
            "subprocess.CalledProcessError: Command train died with <Signals.SIGSEGV: 11>.",
            "accelerate-script-crashed",
        ),
        (
            "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
            "world_size4 != 2 * 1 * 1",
            "deepspeed-batch",
        ),
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 "
            "milliseconds before timing out.",
            "nccl-watchdog-timeout",
        ),
        (
            "[Rank 2] Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, "
            "TensorShape=[5056], Timeout(ms)=1800000) ran for 1800114 milliseconds before timing "
            "out.",
            "nccl-watchdog-timeout",
        ),
        (
            "[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: "
            "7753, last enqueued NCCL work: 7755, last completed NCCL work: 7752.",
            "nccl-watchdog-failure",
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 "
            "has a total capacty of 23.65 GiB of which 1.66 GiB is free. Including non-PyTorch "
            "memory, this process has 20.81 GiB memory in use. Of the allocated memory 12.09 GiB "
            "is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but unallocated.",
            "cuda-oom",
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 MiB. GPU 1 has a "
            "total capacity of 63.98 GiB of which 12.00 MiB is free. Of the allocated memory "
            "62.10 GiB is allocated by PyTorch, and 98.10 MiB is reserved by PyTorch but "
            "unallocated.",
            "cuda-oom",
        ),
        (
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 2 has a total capacity of 79.10 "
            "GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has 40.20 "
            "GiB memory in use. Process 7 has 38.70 GiB memory in use. Of the allocated memory "
            "39.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but "
            "unallocated.",
            "cuda-oom-shared-device",
        ),
        ("RuntimeError: CUDA error: misaligned address", "launch-failure"),
        (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Aborted. ",
            "loader-worker-crashed",
        ),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. "
            "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
            "use). The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address "
            "already in use).",
            "port-in-use",
        ),
        (
            "[rank2]:[E ProcessGroupNCCL.cpp:1182] [PG 0 (default_pg) Rank 2] Received a dump "
            "signal from this local rank and will start to dump the debug info. ",
            "nccl-heartbeat-signal",
        ),
        ("torch.distributed.DistNetworkError: Connection reset by peer", "store-connection-lost"),
        ("RuntimeError: expected scalar type Double but found Float", "dtypes-scalar-type"),
        (
            "ncclSystemError: System call (socket, malloc, munmap, etc) failed.",
            "nccl-system-error",
        ),
        (
            "RuntimeError: Given groups=1, weight of size 64 3 7 7, expected input[2, 1, 224, "
            "224] to have 3 channels, but got 1 channels instead",
            "convolution-channels",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed "
            "by peer [10.0.0.4]:30153",
            "gloo-closed-by-peer",
        ),
        (
            "[2026-09-14T17:14:38.784] error: Detected 2 oom_kill events in StepId=22035606.1. "
            "Some of the step tasks have been OOM Killed.",
            "slurm-oom-kill",
        ),
        (
            "slurmstepd: error: Detected 9 oom-kill event(s) in step 6493531.batch cgroup. Some of "
            "your processes may have been killed by the cgroup out-of-memory handler.",
            "slurm-oom-kill",
        ),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***",
            "slurm-cancelled",
        ),
        ("NVRM: GPU at PCI:0000:18:00.0 has fallen off the bus.", "nvrm-off-the-bus"),
        (
            "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error",
            "nvml-device-handle",
        ),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). "
            "RST: No, D-RST: No",
            "xid-94-contained",
        ),
        (
            "ResourceExhaustedError:  OOM when allocating tensor with shape[256,1024,28,28] and "
            "type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc "
            "[Op:Conv2D]",
            "tf-out-of-memory",
        ),
        (
            "Mismatched MPI operations: One rank did an ALLREDUCE, but another rank did an "
            "ALLGATHER.",
            "horovod-operations",
        ),
        ("Killed", "shell-killed"),
        ("Segmentation fault (core dumped)", "shell-segmentation-fault"),
        ("run.sh: line 12: 4711 Killed   TF_CONFIG=x python train.py > log", "shell-killed"),
        (
            "numpy.core._exceptions.MemoryError: Unable to allocate 6.40 GiB for an array with "
            "shape (858993459,) and data type float64",
            "numpy-memory-error",
        ),
        ("=>> PBS: job killed: mem job total 1 kb exceeded limit 10 kb", "pbs-memory-limit"),
    ],
)
def test_other_versions_say_it_otherwise(line: str, expected: str) -> None:
    assert ids_of(line) == [expected]


def test_a_fragmented_memory_is_distinguished_from_a_full_one() -> None:
    text = (
        "CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.10 GiB of "
        "which 1.00 MiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and "
        "{left} is reserved by PyTorch but unallocated."
    )
    told = {
        (asked, left): codes_of(text.format(asked=asked, left=left))
        for asked in ("512.00 MiB", "6.00 GiB")
        for left in ("90.00 MiB", "7.50 GiB")
    }
    assert told == {
        ("512.00 MiB", "90.00 MiB"): ["oom-device"],
        ("512.00 MiB", "7.50 GiB"): ["oom-fragmentation"],
        ("6.00 GiB", "90.00 MiB"): ["oom-device"],
        ("6.00 GiB", "7.50 GiB"): ["oom-device"],
    }


def test_an_xid_is_reported_by_its_number() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1234, name=python, Ch 00000010"
    told = {number: codes_of(line.format(number)) for number in (13, 48, 74, 79, 95, 119, 140)}
    assert told == {
        13: ["gpu-xid"],
        48: ["gpu-ecc"],
        74: ["nvlink-down"],
        79: ["gpu-lost"],
        95: ["gpu-ecc"],
        119: ["gpu-xid"],
        140: ["gpu-xid"],
    }


@cache
def engine() -> Engine:
    """One for all logs, as the doctor has."""
    return Engine(ALL_SIGNATURES)


@pytest.mark.parametrize(
    "label",
    ["", "[rank3]: ", "[default3]: ", "[1,3]<stderr>:", "3: ", "2026-01-02 03:04:05,678 "],
    ids=["bare", "torch", "torchrun", "mpirun", "srun", "stamped"],
)
def test_the_reader_of_logs_finds_them_behind_labels(label: str) -> None:
    lines = [f"step {step} loss 0.5" for step in range(50)]
    lines += [signature.example for signature in ALL_SIGNATURES for _ in range(signature.least)]
    block = "".join(f"{label}{line}\n" for line in lines).encode()
    hits = {hit.signature for hit in engine().scan("train.log", [block]).hits}
    assert hits == {one.id for one in ALL_SIGNATURES}


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("accelerate-exit", {"accelerate-script-failed"}),
        ("lightning-elastic", {"lightning-world-size"}),
        ("lightning-gpu", {"lightning-no-accelerator"}),
        ("lightning-nan", {"lightning-metric-non-finite"}),
        ("lightning-term", {"lightning-sigterm"}),
        ("lightning-unused", {"lightning-unused-parameters"}),
        ("tensorflow-batchmap", {"tf-samples-of-unequal-size"}),
        ("tensorflow-config-index", {"tf-config-index"}),
        ("tensorflow-config-json", {"tf-config-no-json", "tf-config-frame"}),
        ("tensorflow-input", {"keras-layer-input"}),
        ("tensorflow-labels", {"tf-label-out-of-range"}),
        ("tensorflow-leader-lost", {"tf-collective-aborted"}),
        ("tensorflow-mirrored", {"tf-replicas-of-unequal-size"}),
        ("tensorflow-nan", {"keras-loss-nan"}),
        ("tensorflow-nangrad", {"tf-check-numerics"}),
        ("tensorflow-oom", {"tf-allocator-full", "tf-out-of-memory"}),
        ("tensorflow-per-replica", {"keras-per-replica"}),
        ("tensorflow-port", {"tf-port-in-use", "tf-server-not-started"}),
        ("tensorflow-shape", {"tf-matrix-sizes"}),
        ("tensorflow-weights", {"keras-weights-mismatch"}),
        ("tensorflow-worker-lost", {"tf-heartbeats-stopped"}),
    ],
)
def test_a_job_that_really_failed_is_recognised_by_its_log(log: str, expected: set[str]) -> None:
    block = (CONSOLE / "failed" / f"{log}.log").read_bytes()
    assert {hit.signature for hit in engine().scan(log, [block]).hits} == expected
