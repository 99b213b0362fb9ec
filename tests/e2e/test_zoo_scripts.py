"""A few scripts of `tests/zoo`, in a few of their ways; `make zoo` runs all of them in all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.matrix.sites import Site
from tests.matrix.verdicts import WORKS
from tests.zoo.catalogue import CATALOGUE
from tests.zoo.ways import Way, run_way

pytestmark = pytest.mark.slow

SCRIPTS = {script.name: script for script in CATALOGUE}
CHEAP = [
    ("nanogpt_loop", Way.HANG),
    ("rpc_server", Way.HANG),
    ("vision_reference", Way.CRASH),
]
"""A batch that is cut out by hand, a trainer beside a server, and a worker of a loader."""


def run(name: str, way: Way, folder: Path) -> None:
    script = SCRIPTS[name]
    assert run_way(script, way, Site(Path(sys.executable), folder, script.variables)) == WORKS


@pytest.mark.untimed
@pytest.mark.parametrize(("name", "way"), CHEAP)
def test_a_script_that_hangs_or_crashes_names_its_rank(tmp_path: Path, name: str, way: Way) -> None:
    run(name, way, tmp_path)


def test_steps_of_distributed_autograd_are_counted_once(tmp_path: Path) -> None:
    run("remote_layers", Way.HEALTHY, tmp_path)


def test_a_slow_trainer_is_named_and_not_the_one_that_waits_for_it(tmp_path: Path) -> None:
    run("rpc_server", Way.SLOW, tmp_path)
