"""The meaning of names in a trace: kernels, copies, collectives, marks of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mgpu_doctor.case.profiler_traces import Trace

Flags = npt.NDArray[np.bool_]

_MOVES = re.compile(
    r"(?:nccl|rccl).*Kernel|msccl|nvshmem|multimem_|(?:one|two)_shot_all_reduce|cross_device_reduce"
)
"""Kernels that exchange data: NCCL's names old (`ncclKernel_…`) and new (`ncclDevKernel_…`,
`ncclSymkDevKernel_…`), RCCL's, and those of torch's symmetric memory."""
_COPIES = re.compile(r"Memcpy|Memset|dma")
_PAIRS = re.compile(r"SendRecv|send|recv", re.IGNORECASE)
_HOSTED = re.compile(r"(?:gloo|mpi|ucc|xccl|hccl):")
_STEP = re.compile(r"ProfilerStep")
_LOADER = re.compile(r"enumerate\(DataLoader\)|.*Iter\.__next__|IteratorGetNextOp::")
_OPTIMIZER = re.compile(r"Optimizer\.")
_FORWARD = re.compile(r"(?:DistributedDataParallel|FullyShardedDataParallel|DataParallel)\.forward")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|(?:\S*/)?gradient_tape/")
_FAMILY = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|broadcast|all_?to_?all|reduce|barrier", re.IGNORECASE
)


def _all(pattern: re.Pattern[str], trace: Trace) -> Flags:
    """Which events have such a name."""
    known = np.fromiter((pattern.match(name) is not None for name in trace.names), bool)
    return np.asarray(known[trace.events["name"]], bool)


def moves(trace: Trace) -> Flags:
    return _all(_MOVES, trace)


def copies(trace: Trace) -> Flags:
    return _all(_COPIES, trace)


def hosted(trace: Trace) -> Flags:
    """Collectives that the host carries out."""
    return _all(_HOSTED, trace)


def steps(trace: Trace) -> Flags:
    return _all(_STEP, trace)


def loaders(trace: Trace) -> Flags:
    return _all(_LOADER, trace)


def optimizers(trace: Trace) -> Flags:
    return _all(_OPTIMIZER, trace)


def forwards(trace: Trace) -> Flags:
    return _all(_FORWARD, trace)


def backwards(trace: Trace) -> Flags:
    return _all(_BACKWARD, trace)


def families(names: Sequence[str]) -> tuple[str, ...]:
    """For each collective's name its kind, the same for all spellings; empty for a send or receive,
    in which only two ranks take part."""
    return tuple(_family(name) for name in names)


def _family(name: str) -> str:
    match = _FAMILY.search(name)
    if match is not None:
        return match[0].lower().replace("_", "")
    return "" if _PAIRS.search(name) else "other"
