"""Where the wait within a backward pass begins, in DistributedDataParallel on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"

TRAINING = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

def reduced(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done

def train(case):
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    module = DistributedDataParallel(nn.Linear(4, 4), find_unused_parameters=case == "unused")
    module.register_comm_hook(None, reduced)  # the fake group's own all-reduce gives no result
    other = nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*module.parameters(), *other.parameters()], lr=0.1)
    (name,) = [name for name in sys.modules if name.endswith("frameworks.torch.autograd")]
    this = sys.modules[name].this
    hooked, seen = [], []
    for step in range(6):
        model = other if case == "others" and step % 2 else module
        loss = model(torch.randn(2, 4)).sum()
        loss.register_hook(lambda _: hooked.append(this.handle is not None))
        loss.backward()
        seen.append(this.waits)
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps([case, hooked, seen]))

for case in sys.argv[1:]:
    if os.fork() == 0:
        train(case)
        break
    os.wait()
"""
CASES = ("alike", "unused", "others")
Passes = tuple[list[bool], list[bool]]
"""Of each of six backward passes: whether its first node had a hook, and whether it was seen where
its wait begins."""


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Passes]:
    """Those of each case, in a process of its own; torch is loaded once."""
    boxes = str(tmp_path_factory.mktemp("boxes"))
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, *CASES],
        env={"PYTHONPATH": str(INJECT), "MGPU_DOCTOR_BOXES": boxes, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = map(json.loads, done.stdout.splitlines())
    return {case: (hooked, seen) for case, hooked, seen in told}


def test_the_hook_of_a_parameter_spares_one_on_every_pass(passes: dict[str, Passes]) -> None:
    hooked, seen = passes["alike"]
    assert hooked == [True, False, False, False, False, False]
    assert seen == [True] * 6


def test_a_module_whose_parameters_may_be_unused_has_no_such_hook(
    passes: dict[str, Passes],
) -> None:
    hooked, seen = passes["unused"]
    assert hooked == seen == [True] * 6


def test_passes_of_the_module_are_seen_between_those_of_another(passes: dict[str, Passes]) -> None:
    """The other one is not wrapped and waits for nobody."""
    hooked, seen = passes["others"]
    assert hooked == [True, False] * 3
    assert seen == [True, False] * 3
