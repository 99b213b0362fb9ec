"""The devices on which the tests of this folder run, and the figures that they leave.

A test with the fixture `device` runs twice: on the pretend device, as one of the slow tests, and on
a GPU, with `make test-gpu`. A test that needs a real GPU asks for `gpu`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.gpu.gpu_environment import FOLDER_VARIABLE, NoGpuError, describe_gpu
from tests.gpu.gpu_jobs import CUDA, CUDA_DEVICE, PRETEND, Device, Figures, Watched

ON_PRETEND = pytest.param(PRETEND, marks=pytest.mark.slow)
ON_GPU = pytest.param(CUDA, marks=pytest.mark.gpu)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Nothing here is quick, and the quick run does not import what loads torch."""
    return "not slow" in config.getoption("markexpr") or None


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    """What is measured on a GPU; what the pretend device shows is kept nowhere."""
    folder = os.environ.get(FOLDER_VARIABLE)
    made = Figures(None if folder is None else Path(folder))
    if made.folder is not None:
        made.device = describe_gpu()
    yield made
    made.write()


def _open(kind: str, request: pytest.FixtureRequest) -> Device:
    if kind == PRETEND:
        return Device(PRETEND, request.getfixturevalue("pretend_build"))
    try:
        describe_gpu()
    except NoGpuError as reason:
        pytest.fail(str(reason))
    return CUDA_DEVICE


@pytest.fixture(scope="session", params=[ON_PRETEND, ON_GPU])
def device(request: pytest.FixtureRequest) -> Device:
    """The pretend device, and a GPU."""
    return _open(request.param, request)


@pytest.fixture(scope="session", params=[ON_GPU])
def gpu(request: pytest.FixtureRequest) -> Device:
    """A GPU alone."""
    return _open(request.param, request)


@pytest.fixture(scope="session")
def watch(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Watched]:
    """Runs a job under the doctor, once for the same options."""

    @cache
    def watch(*options: str, ranks: int = 1) -> Watched:
        return device.watch(tmp_path_factory.mktemp("job"), *options, ranks=ranks)

    return watch
