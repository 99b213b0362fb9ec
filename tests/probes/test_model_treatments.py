"""Treatments of the model, its exchange, its rank's cores and its checkpoints, on real scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.recording.box import read_box

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"
TORCH = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank,
                        world_size=int(os.environ["WORLD_SIZE"]))
torch.manual_seed(0)
inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(1))
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
        "channels_last": inner[0].weight.is_contiguous(memory_format=torch.channels_last)
                         and not inner[0].weight.is_contiguous(),
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


def start(
    script: str, folder: Path, treatments: dict[str, Any], words: tuple[str, ...], rank: int
) -> subprocess.Popen[str]:
    """One rank of two."""
    (folder / "script.py").write_text(script)
    return subprocess.Popen(
        [sys.executable, "script.py", f"file://{folder}/meeting", *words],
        cwd=folder,
        env={
            "PYTHONPATH": str(INJECT),
            "MGPU_DOCTOR_BOXES": str(folder / "boxes"),
            "MGPU_DOCTOR_TREATMENTS": json.dumps(treatments),
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PATH": os.environ["PATH"],  # torch.compile needs a compiler
            "HOME": str(folder),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def train(
    folder: Path, treatments: dict[str, Any], *words: str, script: str = TORCH
) -> tuple[Any, dict[str, Any]]:
    """What rank 0 of two printed, and its treatments by name, as its box holds them."""
    folder.mkdir(exist_ok=True)
    ranks = [start(script, folder, treatments, words, rank) for rank in range(2)]
    printed = [process.communicate()[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    return json.loads(printed[0]), described(folder)


def described(folder: Path) -> dict[str, Any]:
    boxes = [read_box(path) for path in sorted((folder / "boxes").glob("*.box"))]
    rank_0 = next(box for box in boxes if box.identity.rank in (0, None))
    return {each["name"]: each for each in rank_0.birth.get("treatments", ())}


UNTREATED = {
    "compiled": False,
    "class": "Sequential",
    "channels_last": False,
    "buffers": True,
    "hooks": [],
    "steps": 10,
}


def test_each_treatment_changes_its_setting_alone(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", {})
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
    treated, changes = train(tmp_path / "treated", everything)
    assert treated.pop("weights") == pytest.approx(weights, abs=1e-3)
    assert treated.pop("names") == names
    assert treated.pop("cores") == (cores // 2 if cores > 1 else 1)
    assert treated == UNTREATED | {
        "compiled": True,
        "channels_last": True,
        "buffers": False,
        "hooks": ["fp16_compress_hook"],
    }
    assert {name: each["changed"] for name, each in changes.items()} == {
        **dict.fromkeys(everything, 1),
        "rank-cores": int(cores > 1),
        "checkpoint-in-background": 3,
    }
    line = TORCH.splitlines().index("model = DistributedDataParallel(inner)") + 1
    assert changes["compile"]["sites"] == [f"{tmp_path}/treated/script.py:{line}"]


@pytest.mark.parametrize(
    ("name", "hook"),
    [("ddp-compress-fp16", "fp16_compress_hook"), ("ddp-power-sgd", "powerSGD_hook")],
)
def test_hooks_of_the_exchange(name: str, hook: str, tmp_path: Path) -> None:
    treated, changes = train(tmp_path / "treated", {name: 1})
    assert treated["hooks"] == [hook]
    assert changes[name]["changed"] == 1
    own, changes = train(tmp_path / "own", {name: 1}, "own-hook")
    assert own["hooks"] == ["allreduce_hook"]
    assert (changes[name]["changed"], changes[name]["refused"]) == (0, "has-hook")


def test_what_torch_refuses_leaves_the_job_as_it_is(tmp_path: Path) -> None:
    """On CPUs, torch has no exchange in bfloat16."""
    treated, changes = train(tmp_path / "treated", {"ddp-compress-bf16": True})
    assert treated["hooks"] == []
    assert changes["ddp-compress-bf16"]["refused"] == "error"
    assert "BF16" in changes["ddp-compress-bf16"]["details"]


def test_parameters_stay_gathered_until_backward(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", {}, script=SHARDED)
    treated, changes = train(tmp_path / "treated", {"fsdp-keep-gathered": True}, script=SHARDED)
    assert (untreated["gathered"], treated["gathered"]) == (False, True)
    assert treated["loss"] == pytest.approx(untreated["loss"], rel=1e-6)
    assert changes["fsdp-keep-gathered"]["changed"] == 3
