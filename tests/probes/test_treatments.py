"""Treatments change what they name in an unchanged script, say where, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.treated_script import changes, train

pytestmark = pytest.mark.slow  # it starts processes that load a framework

SCRIPT = """
import gc, json, os, sys, tempfile, threading
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

accumulate = 4
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=world)
torch.manual_seed(rank)
seen = []
class Model(torch.nn.Linear):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        seen.append(str(outputs.dtype))
        return outputs
class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))
data = TensorDataset(torch.randn(72, 8), torch.randn(72, 1))
loader = DataLoader(data, 4)
stream = DataLoader(Stream(), 2)
torch.manual_seed(0)
model = DistributedDataParallel(Model(8, 1), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
dtypes = set()
for number, (inputs, targets) in enumerate(loader):
    outputs = model(inputs)
    dtypes.add(str(outputs.dtype))
    ((outputs - targets).square().mean() / accumulate).backward()
    if (number + 1) % accumulate == 0 or number + 1 == len(loader):  # 18 batches: a short group
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
gradients = {str(parameter.grad) for parameter in model.parameters()}
if rank == 0:
    print(json.dumps({
        "workers": loader.num_workers, "kept": loader.persistent_workers, "batches": number + 1,
        "stream": stream.num_workers, "search": model.find_unused_parameters,
        "view": model.gradient_as_bucket_view, "static": model.static_graph,
        "cap": model.bucket_bytes_cap, "fused": optimizer.param_groups[0]["fused"],
        "foreach": optimizer.param_groups[0]["foreach"], "zeros": gradients != {"None"},
        "inside": sorted(set(seen)), "outside": sorted(dtypes), "frozen": gc.get_freeze_count() > 0,
        "collects": gc.isenabled(), "pinned": loader.pin_memory,
        "products": torch.get_float32_matmul_precision(),
        "times_algorithms": torch.backends.cudnn.benchmark,
        "weights": [round(float(w), 6) for p in model.parameters() for w in p.detach().flatten()],
    }))
dist.destroy_process_group()
"""


UNTREATED = {
    "workers": 0,
    "kept": False,
    "batches": 18,
    "stream": 0,
    "search": True,
    "view": False,
    "static": False,
    "cap": 25 << 20,
    "fused": None,
    "foreach": None,
    "zeros": True,
    "inside": ["torch.float32"],
    "outside": ["torch.float32"],
    "frozen": False,
    "collects": True,
    "pinned": False,
    "products": "highest",
    "times_algorithms": False,
}


def test_each_treatment_changes_its_setting_alone(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {}, ranks=1)
    weights = untreated.pop("weights")
    assert untreated == UNTREATED
    everything = {
        "loader-workers": 2,
        "ddp-no-search": True,
        "ddp-bucket-view": True,
        "ddp-bucket-size": 1,
        "optimizer-foreach": True,
        "gc-freeze": True,
        "gc-together": 100,
    }
    treated, box = train(tmp_path / "treated", SCRIPT, everything, ranks=1)
    assert treated.pop("weights") == pytest.approx(weights, abs=1e-5)
    assert treated == UNTREATED | {
        "workers": 2,
        "kept": True,
        "search": False,
        "view": True,
        "cap": 1 << 20,
        "foreach": True,
        "frozen": True,
        "collects": False,
    }
    described = changes(box)
    assert described.keys() == everything.keys()
    assert all(each["changed"] == 1 for each in described.values())
    line = SCRIPT.splitlines().index("loader = DataLoader(data, 4)") + 1
    assert described["loader-workers"]["sites"] == [f"{tmp_path}/treated/script.py:{line}"]
    assert described["loader-workers"]["refused"] == "iterable-dataset"


def test_what_does_not_fit_or_is_unknown_is_recorded_and_leaves_the_job_alone(
    tmp_path: Path,
) -> None:
    treated, box = train(
        tmp_path / "treated",
        SCRIPT,
        {"loader-prefetch": 4, "loader-persistent": True, "magic": 1},
        ranks=1,
    )
    treated.pop("weights")
    assert treated == UNTREATED
    described = {name: (each["changed"], each["refused"]) for name, each in changes(box).items()}
    assert described == {
        "loader-prefetch": (0, "no-workers"),
        "loader-persistent": (0, "no-workers"),
        "magic": (0, "unknown-name"),
    }


def test_settings_without_an_effect_on_a_cpu_are_set(tmp_path: Path) -> None:
    settings = ("ddp-static-graph", "loader-pin-memory", "tf32", "cudnn-benchmark")
    treated, box = train(tmp_path / "treated", SCRIPT, dict.fromkeys(settings, True), ranks=1)
    treated.pop("weights")
    set_now = {"static": True, "pinned": True, "products": "high", "times_algorithms": True}
    assert treated == UNTREATED | set_now
    changed = {name: each["changed"] for name, each in changes(box).items()}
    assert changed == dict.fromkeys(settings, 1) | {"loader-pin-memory": 2}  # it has two loaders


def test_precision_changes_inside_the_model_only(tmp_path: Path) -> None:
    treated, _ = train(
        tmp_path / "treated",
        SCRIPT,
        {"autocast-bf16": True, "optimizer-fused": True, "drop-gradients": True},
        ranks=1,
    )
    treated.pop("weights")
    changed = {"inside": ["torch.bfloat16"], "fused": True, "zeros": False}
    assert treated == UNTREATED | changed


def test_exchanging_gradients_once_per_update_trains_the_same_weights(tmp_path: Path) -> None:
    """Also where the last group of micro-batches is shorter than the others."""
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {})
    treated, box = train(tmp_path / "treated", SCRIPT, {"ddp-no-sync": 4})
    assert treated["weights"] == pytest.approx(untreated["weights"], abs=1e-5)
    assert (box.birth["ddp"]["forwards"], box.birth["ddp"]["synced"]) == (18, 4)


@pytest.mark.parametrize(("blocks", "synced"), [("[1, 1, false]", 12), ("[1, 1, true]", 13)])
def test_switching_in_the_same_step_on_all_ranks(blocks: str, synced: int, tmp_path: Path) -> None:
    """Five updates of 4, 4, 4, 4 and 2 passes; off in the first, then A B B A or B A A B. Gradients
    are exchanged in each pass where it is off, else once, and by the optimizer after a short
    group."""
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {})
    treated, box = train(tmp_path / "treated", SCRIPT, {"ddp-no-sync": 4}, blocks=blocks)
    assert treated["weights"] == pytest.approx(untreated["weights"], abs=1e-5)
    assert (box.birth["ddp"]["forwards"], box.birth["ddp"]["synced"]) == (18, synced)


def test_switching_garbage_collection_and_precision(tmp_path: Path) -> None:
    treatments = {"gc-freeze": True, "gc-together": 100, "autocast-bf16": True}
    on, _ = train(tmp_path / "on", SCRIPT, treatments, blocks="[1, 1, false]", ranks=1)
    assert (on["frozen"], on["collects"]) == (True, False)
    assert on["inside"] == ["torch.bfloat16", "torch.float32"]
    off, _ = train(tmp_path / "off", SCRIPT, treatments, blocks="[1, 1, true]", ranks=1)
    assert (off["frozen"], off["collects"]) == (False, True)


@pytest.mark.parametrize("name", ["fused", "foreach"])
def test_switching_how_an_optimizer_updates(name: str, tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {}, ranks=1)
    treatment = {f"optimizer-{name}": True}
    on, box = train(tmp_path / "on", SCRIPT, treatment, blocks="[1, 1, false]", ranks=1)
    off, _ = train(tmp_path / "off", SCRIPT, treatment, blocks="[1, 1, true]", ranks=1)
    assert (on[name], off[name]) == (True, None)
    for treated in (on, off):
        assert treated["weights"] == pytest.approx(untreated["weights"], abs=1e-5)
    described = changes(box)[f"optimizer-{name}"]
    line = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "optim.AdamW" in text)
    assert described["sites"] == [f"{tmp_path}/on/script.py:{line}"]
    assert (described["changed"], described["refused"]) == (1, None)
