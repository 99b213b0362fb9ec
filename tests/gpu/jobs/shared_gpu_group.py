"""A process group for several ranks on one GPU, in which streams wait for other ranks as with NCCL.

NCCL refuses two ranks on one GPU, and gloo makes the host wait. Here a collective is written into
page-locked memory that the ranks share: each stream writes that it has arrived and waits until all
have (cuStreamWriteValue32, cuStreamWaitValue32). Like the pretend device's, it moves nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.distributed as dist

from tests.support.pretend_accelerator.pretend_runtime import Group

NAME = "streams"
_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ"""
_ARRIVED = 1


class SharedGpuGroup(Group):
    """Its collectives take no time once all ranks have arrived."""

    module: Any = torch.cuda
    device = "cuda"

    def _open(self, address: int, size: int) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        self._write = _find(driver, "cuStreamWriteValue32")
        self._wait = _find(driver, "cuStreamWaitValue32")
        torch.cuda.init()
        result = torch.cuda.cudart().cudaHostRegister(address, size, 0)
        assert int(result) == 0, f"cudaHostRegister: {result}"

    def getBackendName(self) -> str:  # noqa: N802
        """As of ProcessGroup."""
        return NAME

    def _meet(self, address: int) -> None:
        stream = self._stream.cuda_stream
        _call(self._write, stream, address + 8 * self._rank, _ARRIVED)
        for rank in range(self._size):
            _call(self._wait, stream, address + 8 * rank, _ARRIVED)


def _find(driver: Any, name: str) -> Any:
    """The function of the driver; `_v2` needs no kernel module's option, since CUDA 11.7."""
    function = getattr(driver, f"{name}_v2", None) or getattr(driver, name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    return function


def _call(function: Any, stream: int, address: int, value: int) -> None:
    result = function(stream, address, value, _AT_LEAST)
    assert result == 0, f"{function.__name__}: CUDA error {result}"


def _make_group(store: Any, rank: int, size: int, _: Any) -> SharedGpuGroup:
    return SharedGpuGroup(store, rank, size)


def register() -> None:
    """Makes it known to torch.distributed as `streams`."""
    backend: Any = dist.Backend
    backend.register_backend(NAME, _make_group, devices=["cuda"])
