"""Treatments of the model, its exchange, its rank's cores and its checkpoints, on real scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.treated_script import changes, train

pytestmark = pytest.mark.slow  # it starts processes that load a framework

TORCH = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank,
                        world_size=int(os.environ["WORLD_SIZE"]))
torch.manual_seed(0)
inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Flatten(),
                      nn.LazyLinear(1))
inner(torch.randn(2, 3, 8, 8))
model = DistributedDataParallel(inner)
if "own-hook" in sys.argv:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model.register_comm_hook(None, default_hooks.allreduce_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(14):
    loss = model(torch.randn(4, 3, 8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 0:
        torch.save({"model": model.state_dict(), "step": step}, "draft.pt")
        os.replace("draft.pt", f"{step}.pt")
        with torch.no_grad():  # what is written later is what was saved
            for parameter in model.parameters():
                parameter.add_(1.0)
                parameter.sub_(1.0)
saved = torch.load("10.pt") if rank == 0 else {}
if rank == 0:
    print(json.dumps({
        "compiled": inner._compiled_call_impl is not None,
        "class": type(model.module).__name__,
        "channels_last": [
            layer.weight.stride()
            == torch.empty_like(layer.weight, memory_format=torch.channels_last).stride()
            for layer in inner[:2]
        ],
        "buffers": model.broadcast_buffers,
        "hooks": [hook.__name__ for hook, _ in model._comm_hooks],
        "cores": len(os.sched_getaffinity(0)),
        "names": [name.removeprefix("module.") for name in saved["model"]],
        "steps": saved["step"],
        "weights": [round(float(w), 5) for p in model.parameters() for w in p.detach().flatten()],
    }))
dist.destroy_process_group()
"""


SHARDED = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(os.environ["RANK"]),
                        world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    loss = model(torch.ones(4, 8)).square().mean()
    gathered = not isinstance(model[0].weight, DTensor)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if os.environ["RANK"] == "0":
    print(json.dumps({"gathered": gathered, "loss": loss.item(),
                      "state": fully_shard.state(model) is not None}))
dist.destroy_process_group()
"""


UNTREATED = {
    "compiled": False,
    "class": "Sequential",
    "channels_last": [False, False],
    "buffers": True,
    "hooks": [],
    "steps": 10,
}


def test_each_treatment_changes_its_setting_alone(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", TORCH, {})
    weights, names = untreated.pop("weights"), untreated.pop("names")
    cores = untreated.pop("cores")
    assert untreated == UNTREATED
    everything = {
        "compile": True,
        "channels-last": True,
        "ddp-local-buffers": True,
        "ddp-compress-fp16": True,
        "rank-cores": True,
        "checkpoint-in-background": True,
    }
    treated, box = train(tmp_path / "treated", TORCH, everything)
    assert treated.pop("weights") == pytest.approx(weights, abs=1e-3)
    assert treated.pop("names") == names
    assert treated.pop("cores") == (cores // 2 if cores > 1 else 1)
    assert treated == UNTREATED | {
        "compiled": True,
        "channels_last": [True, True],
        "buffers": False,
        "hooks": ["fp16_compress_hook"],
    }
    assert {name: each["changed"] for name, each in changes(box).items()} == {
        **dict.fromkeys(everything, 1),
        "rank-cores": int(cores > 1),
        "checkpoint-in-background": 3,
    }
    line = TORCH.splitlines().index("model = DistributedDataParallel(inner)") + 1
    assert changes(box)["compile"]["sites"] == [f"{tmp_path}/treated/script.py:{line}"]


@pytest.mark.parametrize(
    ("name", "hook"),
    [("ddp-compress-fp16", "fp16_compress_hook"), ("ddp-power-sgd", "powerSGD_hook")],
)
def test_hooks_of_the_exchange(name: str, hook: str, tmp_path: Path) -> None:
    treated, box = train(tmp_path / "treated", TORCH, {name: 1})
    assert treated["hooks"] == [hook]
    assert changes(box)[name]["changed"] == 1
    own, box = train(tmp_path / "own", TORCH, {name: 1}, "own-hook")
    assert own["hooks"] == ["allreduce_hook"]
    assert (changes(box)[name]["changed"], changes(box)[name]["refused"]) == (0, "has-hook")


def test_what_torch_refuses_leaves_the_job_as_it_is(tmp_path: Path) -> None:
    """On CPUs, torch has no exchange in bfloat16."""
    treated, box = train(tmp_path / "treated", TORCH, {"ddp-compress-bf16": True})
    assert treated["hooks"] == []
    assert changes(box)["ddp-compress-bf16"]["refused"] == "error"
    assert "BF16" in changes(box)["ddp-compress-bf16"]["details"]


def test_parameters_stay_gathered_until_backward(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", SHARDED, {})
    treated, box = train(tmp_path / "treated", SHARDED, {"fsdp-keep-gathered": True})
    assert (untreated["gathered"], treated["gathered"]) == (False, True)
    assert treated["loss"] == pytest.approx(untreated["loss"], rel=1e-6)
    assert changes(box)["fsdp-keep-gathered"]["changed"] == 3
