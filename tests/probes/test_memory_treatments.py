"""Treatments of repeated blocks, of the optimizer's states and of a rank's threads and cores, on
real scripts of two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.inprocess.treatments.rank_placement import choose_near_gpu, read_cores

from tests.support.treated_script import changes, train

slow = pytest.mark.slow  # it starts processes that load a framework
SCRIPT = """
import copy, json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

class Block(nn.Module):
    passes = 0
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(8) if "norm" in sys.argv else nn.LayerNorm(8)
    def forward(self, x):
        Block.passes += 1
        return x + self.drop(torch.relu(self.norm(self.layer(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
torch.manual_seed(0)
net = Net()
if "fsdp" in sys.argv:
    mesh = init_device_mesh("cpu", (2,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    model = fully_shard(net, mesh=mesh)
else:
    model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)
torch.manual_seed(rank)
for step in range(12):
    Block.passes = 0
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
copied = copy.deepcopy(net) if "fsdp" not in sys.argv else net
torch.save(copied.state_dict() if "fsdp" in sys.argv else copied, f"{rank}.pt")
held = getattr(optimizer, "optim", optimizer)
if "save" in sys.argv:
    optimizer.state_dict()
sharded = [part for part in net.blocks if isinstance(part, FSDPModule)]
print(json.dumps({
    "loss": loss.item(), "passes": Block.passes, "class": type(optimizer).__name__,
    "own": type(held).__name__, "rates": [group["lr"] for group in optimizer.param_groups],
    "states": sum(state["exp_avg"].numel() for state in held.state.values()),
    "forward": [len(fully_shard.state(part)._states_to_forward_prefetch) for part in sharded],
    "backward": [len(fully_shard.state(part)._states_to_backward_prefetch) for part in sharded],
    "names": [name for name, _ in net.named_parameters()][:3],
    "interop": torch.get_num_interop_threads(),
    "gloo": dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        .options._threads,
}))
dist.destroy_process_group()
"""
PARAMETERS = 4 * (8 * 8 + 8 + 2 * 8) + 8 + 1
UNTREATED = {
    "passes": 4,
    "class": "AdamW",
    "own": "AdamW",
    "rates": [0.01],
    "states": PARAMETERS,
    "forward": [],
    "backward": [],
    "names": ["blocks.0.layer.weight", "blocks.0.layer.bias", "blocks.0.norm.weight"],
    "gloo": 2,
}


@slow
def test_each_treatment_changes_its_setting_alone(tmp_path: Path) -> None:
    """Also the masks of dropout are the same: the losses are equal to the last bit."""
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {})
    loss, interop = untreated.pop("loss"), untreated.pop("interop")
    assert untreated == UNTREATED
    wanted = {
        "activation-checkpointing": True,
        "optimizer-zero1": True,
        "gloo-threads": 5,
        "interop-threads": interop + 1,
    }
    treated, box = train(tmp_path / "treated", SCRIPT, wanted)
    assert treated.pop("loss") == loss
    assert treated.pop("interop") == interop + 1
    states = treated.pop("states")
    assert PARAMETERS / 3 < states < PARAMETERS * 2 / 3
    expected = UNTREATED | {"passes": 8, "class": "ZeroRedundancyOptimizer", "gloo": 5}
    assert treated == {name: value for name, value in expected.items() if name != "states"}
    assert {name: each["changed"] for name, each in changes(box).items()} == dict.fromkeys(
        wanted, 1
    )
    lines = SCRIPT.splitlines()
    for name, text in (
        ("activation-checkpointing", "    model = DistributedDataParallel(net)"),
        ("optimizer-zero1", "optimizer = torch.optim.AdamW("),
    ):
        number = 1 + next(n for n, line in enumerate(lines) if line.startswith(text))
        assert changes(box)[name]["sites"] == [f"{tmp_path}/treated/script.py:{number}"]


@slow
def test_blocks_with_fully_shard(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {}, "fsdp")
    assert untreated["passes"] == 4
    assert untreated["forward"] == untreated["backward"] == [0, 0, 0, 0]
    wanted = {"activation-checkpointing": True, "fsdp-prefetch": 2}
    treated, box = train(tmp_path / "treated", SCRIPT, wanted, "fsdp")
    assert treated["loss"] == untreated["loss"]
    assert treated["passes"] == 8
    assert (treated["forward"], treated["backward"]) == ([2, 2, 1, 0], [0, 1, 2, 2])
    assert {name: each["changed"] for name, each in changes(box).items()} == dict.fromkeys(
        wanted, 1
    )


@slow
def test_what_does_not_fit_leaves_the_job_as_it_is(tmp_path: Path) -> None:
    """Recomputing would count each batch twice in the running means of batch normalization."""
    wanted: dict[str, Any] = {
        "activation-checkpointing": True,
        "fsdp-prefetch": 2,
        "gpu-cores": True,
    }
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {}, "norm")
    treated, box = train(tmp_path / "treated", SCRIPT, wanted, "norm")
    assert treated == untreated
    described = {name: (each["changed"], each["refused"]) for name, each in changes(box).items()}
    assert described == {
        "activation-checkpointing": (0, "batch-normalization"),
        "fsdp-prefetch": (0, "no-blocks"),
        "gpu-cores": (0, "no-gpu"),
    }


def test_cores_near_the_gpu_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs on two nodes of four cores each."""
    for address, cores in (("0000:1A:00.0", "0-3"), ("0000:B1:00.0", "4-7")):
        (tmp_path / "gpus" / address).mkdir(parents=True)
        (tmp_path / "devices" / address.lower()).mkdir(parents=True)
        (tmp_path / "devices" / address.lower() / "local_cpulist").write_text(f"{cores}\n")
    places = str(tmp_path / "gpus"), str(tmp_path / "devices")

    def choose(rank: str, visible: str | None, allowed: range = range(8)) -> set[int] | str:
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return choose_near_gpu(allowed, *places)

    assert choose("1", None) == {4, 5, 6, 7}
    assert choose("0", "1") == {4, 5, 6, 7}
    assert choose("0", None, range(2, 6)) == {2, 3}
    assert choose("0", None, range(4)) == "near"
    assert choose("0", None, range(4, 8)) == "too-few-cores"
    assert choose("2", None) == choose("0", "GPU-8f7a") == choose("x", None) == "no-gpu"
    monkeypatch.delenv("LOCAL_RANK")
    assert choose_near_gpu(range(8), *places) == "no-local-rank"


@pytest.mark.parametrize(("text", "cores"), [("0-2,8\n", {0, 1, 2, 8}), ("5", {5})])
def test_lists_of_cores(text: str, cores: set[int]) -> None:
    assert read_cores(text) == cores
