"""What NVML's errors mean to a reader of facts."""

from __future__ import annotations

from typing import Any

import pynvml

Json = dict[str, Any]

GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""The device answers nothing any more."""
LACKING = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""The device or its driver does not have what was asked for: unknown, and nothing is wrong."""
_NO_DRIVER = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)


class LostError(Exception):
    """The device answers nothing any more."""


def is_lacking(error: BaseException) -> bool:
    """AttributeError: an older nvidia-ml-py does not know the name."""
    return isinstance(error, AttributeError) or getattr(error, "value", None) in LACKING


def sentence(error: Any) -> str:
    """NVML's words for its error, in lower case where they stand for themselves."""
    if isinstance(error, AttributeError):
        return "not known to this version of nvidia-ml-py"
    return str(error).strip().rstrip(".").replace("Not Supported", "not supported")


def no_devices(error: Any) -> str:
    """Why NVML shows no device at all."""
    if error.value in _NO_DRIVER:
        return "no NVIDIA driver on this machine"
    return f"NVML does not start: {sentence(error)}"
