"""What several tests share: jobs are run once, the pretend GPU is compiled once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examining import Observed
from tests.support.jobs import IN_PARALLEL

COMPILER = Path(__file__).parents[2] / ".ci" / "compiler"


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return Observed(tmp_path_factory)


@pytest.fixture(scope="session")
def pretend_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the pretend GPU has been compiled, once for all processes of the tests.
    Outside of the lock of training jobs: a compiler disturbs no test that judges speed for long."""
    compiler = subprocess.run([COMPILER], capture_output=True, text=True, check=False)
    if compiler.returncode != 0:
        pytest.skip(compiler.stderr.strip())
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if IN_PARALLEL else own) / "pretend-gpu"
    command = [sys.executable, "-m", "tests.support.pretend_accelerator", str(folder)]
    chosen = {**os.environ, "CXX": compiler.stdout.strip()}
    compiled = subprocess.run(command, capture_output=True, text=True, check=False, env=chosen)
    assert compiled.returncode == 0, compiled.stderr
    return folder
