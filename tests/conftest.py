"""Property tests search the same examples every time; to search new ones:
`pytest --hypothesis-profile=search`. Also what is made once for all tests."""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.support.nvml import Libraries, PretendNvml

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Else each of the hundreds of processes that tests start would compile the doctor anew."""

for ignored in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)
"""A shell's background jobs ignore them: so would all that tests start."""

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure of a test."""
settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("search", UNTIMED, derandomize=False)
settings.load_profile("same")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """The pretend NVML library in all its kinds."""
    return Libraries(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def nvml(libraries: Libraries) -> PretendNvml:
    """That of a driver of today."""
    return libraries.kind()
