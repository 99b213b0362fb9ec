"""The writers of Parquet and of TensorBoard's scalars, whose packages take seconds to load."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def optional_formats() -> ModuleType:
    from mgpu_doctor.export import optional_formats

    return optional_formats
