"""The models of a rank are found without a wrapper around them, and nothing else is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.treated_script import changes, train

pytestmark = pytest.mark.slow  # it starts processes that load a framework

SCRIPT = """
import copy, io, json, sys, warnings
warnings.filterwarnings("error", message=".*global hooks")
import torch
from torch import nn
from torch._dynamo.utils import counters

@torch._dynamo.disable
def note(outputs):
    seen.append(str(outputs.dtype))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LazyLinear(8)
    def forward(self, x):
        x = self.conv(x)
        note(x)
        return self.head(torch.relu(self.norm(x)).flatten(1))

class Scores(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()

original, seen, outside = nn.Module.__call__, [], set()
torch.manual_seed(0)
net, scores, loss_of = Net(), Scores(8, 1), nn.MSELoss()
net(torch.zeros(1, 3, 8, 8))  # as torch asks for in lazy modules
model = torch.compile(net, backend="eager") if "compiled" in sys.argv else net
frozen = nn.Linear(1, 1).requires_grad_(False)
optimizers = [torch.optim.SGD(part.parameters(), 0.01) for part in (net, scores)]
with torch.no_grad():
    scores(model(torch.zeros(1, 3, 8, 8)))
seen.clear()
for step in range(12):
    for optimizer in optimizers:
        for _ in range(2):
            outputs = model(torch.randn(4, 3, 8, 8))
            outside.add(str(outputs.dtype))
            loss_of(frozen(scores(outputs)), torch.zeros(4, 1)).backward()
        optimizer.step()
    net.zero_grad()
    scores.zero_grad()
saved = io.BytesIO()
torch.save(copy.deepcopy(net), saved)
saved.seek(0)
print(json.dumps({
    "watched": nn.Module.__call__ is not original,
    "compiled": [name for part in (net, scores) for name, each in part.named_modules(prefix="m")
                 if each._compiled_call_impl is not None],
    "last": net.conv.weight.is_contiguous(memory_format=torch.channels_last),
    "inside": sorted(set(seen)), "outside": sorted(outside),
    "loaded": sorted(vars(torch.load(saved, weights_only=False)).keys() - vars(Net()).keys()),
    "names": list(net.state_dict()), "compilations": counters["stats"]["unique_graphs"],
    "weights": [round(float(w), 5) for p in net.parameters() for w in p.detach().flatten()],
}))
"""
NAMES = ["conv.weight", "conv.bias", "norm.weight", "norm.bias", "norm.running_mean",
         "norm.running_var", "norm.num_batches_tracked", "head.weight", "head.bias"]  # fmt: skip
UNTREATED: dict[str, Any] = {
    "watched": False,
    "compiled": [],
    "last": False,
    "inside": ["torch.float32"],
    "outside": ["torch.float32"],
    "loaded": [],
    "names": NAMES,
}


def test_models_of_one_process(tmp_path: Path) -> None:
    """Two models, two micro-batches, and modules that are no models. Compiled and stored otherwise
    they train the same weights."""
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {}, ranks=1)
    weights = untreated.pop("weights")
    assert untreated == UNTREATED | {"compilations": 0}
    wanted = {"compile": True, "channels-last": True, "activation-checkpointing": True}
    treated, box = train(tmp_path / "treated", SCRIPT, wanted, ranks=1)
    assert treated.pop("weights") == pytest.approx(weights, abs=1e-4)
    assert treated.pop("compilations") >= 2
    assert treated == UNTREATED | {"compiled": ["m", "m"], "last": True}
    described = changes(box)
    assert {name: (each["changed"], each["refused"]) for name, each in described.items()} == {
        "compile": (2, None),
        "channels-last": (1, "no-convolution"),
        "activation-checkpointing": (0, "no-blocks"),
    }
    lines = [number for number, text in enumerate(SCRIPT.splitlines(), 1)
             if "outputs = model(" in text or "loss_of(frozen" in text]  # fmt: skip
    assert described["compile"]["sites"] == [f"{tmp_path}/treated/script.py:{n}" for n in lines]


def test_precision_changes_inside_of_each_model_alone(tmp_path: Path) -> None:
    wanted = {"autocast-bf16": True}
    treated, box = train(tmp_path / "treated", SCRIPT, wanted, ranks=1, blocks="[1, 1, false]")
    assert treated["inside"] == ["torch.bfloat16", "torch.float32"]
    assert (treated["outside"], treated["loaded"]) == (["torch.float32"], [])
    assert (changes(box)["autocast-bf16"]["changed"], treated["watched"]) == (2, False)


def test_what_the_script_has_compiled(tmp_path: Path) -> None:
    """It is not compiled twice, nor again when modules are no longer watched, and its precision
    can be changed."""
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {}, "compiled", ranks=1)
    wanted = {"autocast-bf16": True, "compile": True}
    treated, box = train(tmp_path / "treated", SCRIPT, wanted, "compiled", ranks=1)
    assert treated["inside"] == ["torch.bfloat16"]
    assert treated["compilations"] == untreated["compilations"] + 1  # of the scores
    described = {name: (each["changed"], each["refused"]) for name, each in changes(box).items()}
    assert described == {"autocast-bf16": (2, None), "compile": (1, "already-set")}
