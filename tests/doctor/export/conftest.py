"""The writers of Parquet and of TensorBoard's scalars."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def optional_formats() -> ModuleType:
    """As where torch is not installed: tensorboardX would load it, which takes seconds, and needs
    it for no scalar."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        import tensorboardX  # noqa: F401
    from mgpu_doctor.export import optional_formats

    return optional_formats
