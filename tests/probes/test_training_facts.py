"""What the probe reports of data, weights, learning rates and losses, in one of two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mgpu_probes.inprocess import training_objects
from mgpu_probes.inprocess.framework_adapters import give_context
from mgpu_probes.inprocess.frameworks.torch import data_loader as hooks
from mgpu_probes.inprocess.frameworks.torch import tensor_digests
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_fast_path import StepFastPath
from mgpu_probes.inprocess.step_marks import backward_ended
from mgpu_probes.inprocess.step_segments import Step
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from mgpu_doctor.recording.box import Box, read_box

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"
DATA = TensorDataset(torch.arange(40.0))


# ---------------------------------------------------------------------------------- digests


def test_equal_batches_have_equal_digests_whatever_holds_them() -> None:
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8)
    told = tensor_digests.of_batch([images, labels])
    assert told == tensor_digests.of_batch((images.clone(), labels.clone()))
    assert told == tensor_digests.of_batch({"x": images, "nested": [labels]})
    assert told == tensor_digests.of_batch([images.to(memory_format=torch.channels_last), labels])
    assert told != tensor_digests.of_batch([images, labels.flip(0)])
    assert told != tensor_digests.of_batch([images + 1e-3, labels])


def test_images_that_differ_but_in_their_corners_have_different_digests() -> None:
    first, second = (torch.zeros(64, 1, 28, 28) for _ in range(2))
    first[:, :, 10:18, 10:18], second[:, :, 10:18, 10:18] = 1.0, 2.0
    assert tensor_digests.of_batch(first) != tensor_digests.of_batch(second)


@pytest.mark.parametrize(
    "batch",
    [
        None,
        "text",
        [],
        [1, 2.0],
        torch.empty(0, 3),
        torch.empty(4, device="meta"),
        torch.eye(3).to_sparse(),
        object(),
    ],
)
def test_a_batch_without_tensors_in_memory_has_none(batch: object) -> None:
    assert tensor_digests.of_batch(batch) is None


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.complex64]
)
def test_kinds_of_numbers(dtype: torch.dtype) -> None:
    values = torch.ones(5, dtype=dtype)
    assert tensor_digests.of_batch(values) == tensor_digests.of_batch(values.clone())
    assert tensor_digests.of_batch(values) != tensor_digests.of_batch(torch.zeros(5, dtype=dtype))


def test_numbers_that_torch_cannot_gather_have_no_digest() -> None:
    assert tensor_digests.of_batch(torch.ones(3, dtype=torch.float8_e4m3fn)) is None


def test_weights_tell_shapes_values_and_a_sum() -> None:
    parameters = list(torch.nn.Linear(32, 8).parameters())
    shapes, values, total = (tensor_digests.of_weights(parameters) or "").split(".", 2)
    assert float(total) > 0
    with torch.no_grad():
        parameters[1][3] += 1
    changed = (tensor_digests.of_weights(parameters) or "").split(".", 2)
    assert changed[0] == shapes
    assert changed[1] != values
    assert float(changed[2]) > float(total)
    assert (tensor_digests.of_weights(parameters[:1]) or "").split(".")[0] != shapes


def test_weights_of_many_parameters_are_seen_from_the_first_to_the_last() -> None:
    parameters = [torch.zeros(3) for _ in range(150)]
    told = tensor_digests.of_weights(parameters)
    for place in (0, 75, 147):
        parameters[place] += 1
        assert tensor_digests.of_weights(parameters) != told
        parameters[place] -= 1


@pytest.mark.parametrize("odd", [torch.empty(2, device="meta"), torch.eye(2).to_sparse()])
def test_weights_that_are_not_all_in_memory_have_none(odd: torch.Tensor) -> None:
    assert tensor_digests.of_weights([torch.ones(3), odd]) is None
    assert tensor_digests.of_weights([]) is None


# ----------------------------------------------------------------------- loaders and optimizers


def test_a_distributed_sampler_tells_its_settings() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=4, rank=2, seed=9)
    loader = DataLoader(DATA, 5, sampler=sampler)
    seen = training_objects.describe_loader(loader)
    sampler.set_epoch(3)
    known = {
        "sampler": "DistributedSampler",
        "sampler_seed": 9,
        "sampler_ranks": 4,
        "sampler_rank": 2,
        "sampler_epoch": 3,
        "shuffles": True,
        "dataset_length": 40,
        "batches": 2,
    }
    assert {key: seen.now()[key] for key in known} == known


@pytest.mark.parametrize(
    ("shuffle", "name"), [(True, "RandomSampler"), (False, "SequentialSampler")]
)
def test_plain_loaders_tell_whether_they_shuffle(shuffle: bool, name: str) -> None:
    facts = training_objects.describe_loader(DataLoader(DATA, 8, shuffle=shuffle)).facts
    assert (facts["sampler"], facts["shuffles"]) == (name, shuffle)
    assert (facts["sampler_seed"], facts["sampler_ranks"]) == (None, None)


def test_the_sampler_behind_given_batches_is_the_one_that_counts() -> None:
    given = BatchSampler(DistributedSampler(DATA, num_replicas=2, rank=1), 4, drop_last=False)
    facts = training_objects.describe_loader(DataLoader(DATA, batch_sampler=given)).facts
    assert (facts["sampler"], facts["sampler_rank"]) == ("DistributedSampler", 1)


class Strange(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from ()

    def __len__(self) -> int:
        raise AssertionError("nobody should ask")


class Moody(DistributedSampler[Any]):
    def __len__(self) -> int:
        raise ZeroDivisionError

    @property
    def epoch(self) -> int:
        raise LookupError

    @epoch.setter
    def epoch(self, value: int) -> None:
        pass


def test_what_a_user_wrote_may_raise_anything() -> None:
    facts = training_objects.describe_loader(DataLoader(Strange())).facts
    assert (facts["dataset_length"], facts["batches"]) == (None, None)
    sampler = Moody(DATA, num_replicas=2, rank=0)
    seen = training_objects.describe_loader(DataLoader(DATA, sampler=sampler)).now()
    assert (seen["batches"], seen["sampler_epoch"], seen["dataset_length"]) == (None, None, 40)


def adam(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(torch.nn.Linear(4, 4).parameters(), **options)


def test_an_optimizer_tells_its_rate_then_and_now() -> None:
    optimizer = adam(lr=0.5)
    seen = training_objects.describe_optimizer(optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    now = seen.now()
    assert (now["lr"], now["lr_now"], now["lr_default"]) == (0.5, 0.25, 1e-3)


def test_what_is_gone_is_reported_as_it_was_last() -> None:
    optimizer = adam(lr=0.5)
    seen = training_objects.describe_optimizer(optimizer)
    seen.now()
    del optimizer
    assert (seen.subject, seen.now()["lr_now"]) == (None, 0.5)


def test_a_rate_in_a_tensor_is_not_read() -> None:
    optimizer = adam(lr=torch.tensor(0.5))
    facts = training_objects.describe_optimizer(optimizer).now()
    assert (facts["lr"], facts["lr_now"]) == (None, None)


def test_a_loader_that_is_gone_feeds_no_training_any_more() -> None:
    """Validation's loader may get its id."""
    iterator = iter(DataLoader(DATA, 4))
    sampler = weakref.ref(iterator._index_sampler)
    place = id(sampler())
    hooks._meets(sampler())
    context = ProbeContext()
    give_context(context)
    context.steps.training.add(place)
    hooks._asks(place)
    del iterator
    assert sampler() is None
    assert place not in context.steps.training | hooks._alive.keys() | hooks.asked_marks.keys()


def test_batches_that_nobody_can_watch_go_on_being_known() -> None:
    batches = [[0, 1], [2, 3]]
    hooks._meets(batches)
    assert hooks._alive.pop(id(batches)) is None


# ------------------------------------------------------------------------------------ losses


def lost(turns: int, mark: Callable[[StepFastPath], Callable[..., None]]) -> list[Step]:
    told: list[Step] = []
    clock = iter(range(10_000))
    fast_path = StepFastPath(Ledger(next(clock)), told.append, lambda: (0, 0, 0, 0))
    update = lambda steps, now: steps.update_ends(now, 7)  # noqa: E731 - a mark needs an identity
    for turn in range(turns):
        send = mark(fast_path)
        send(Steps.backward_begins, next(clock))
        send(backward_ended, next(clock), (float("inf") if turn >= turns - 2 else 0.5,))
        send(Steps.update_begins, next(clock))
        send(update, next(clock))
    fast_path.engine().leave()
    return told


def through_engine(fast_path: StepFastPath) -> Callable[..., None]:
    return lambda mark, now, data=(): mark(fast_path.engine(), now, *data)


@pytest.mark.parametrize("way", [through_engine, lambda fast_path: fast_path.mark])
def test_a_loss_that_is_no_number_survives_the_engine_and_the_fast_path(way: Any) -> None:
    assert [step.loss for step in lost(20, way)] == [0.5] * 18 + [float("inf")] * 2


# ------------------------------------------------------------------------- a rank as a whole

LOOP = """
import sys, torch, torch.distributed as dist
from math import inf, nan
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("fake", rank=0, world_size=int(sys.argv[1]), store=FakeStore())
torch.manual_seed(5)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training, validation = TensorDataset(torch.randn(48, 4)), TensorDataset(torch.randn(8, 4))

def validate():
    for (inputs,) in DataLoader(validation, 4):
        with torch.no_grad():
            model(inputs)

def train(factors):
    for turn, (inputs,) in enumerate(DataLoader(training, 4)):
        loss = model(inputs).sum() * factors[turn % len(factors)]
        loss.backward()
        if len(factors) > 1:
            optimizer.zero_grad()  # the weights stay numbers
        optimizer.step()
        optimizer.zero_grad()

for epoch in range(4):
    validate()
    train([nan, inf, -inf] if epoch == 3 else [1.0])
"""


def trained(folder: Path, world: int) -> Box:
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(world)],
        env={"PYTHONPATH": str(INJECT), "MGPU_DOCTOR_BOXES": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = folder.glob("*.box")
    box = read_box(path)
    assert box.state == "ended"
    return box


@pytest.fixture(scope="module")
def one_of_two(tmp_path_factory: pytest.TempPathFactory) -> Box:
    return trained(tmp_path_factory.mktemp("two"), 2)


def test_a_rank_tells_its_first_batches_and_its_weights(one_of_two: Box) -> None:
    birth = one_of_two.birth
    places = [(loader, epoch, index) for loader, epoch, index, _ in birth["batches"]]
    assert places == [(1, epoch, index) for epoch in range(3) for index in range(8)]
    digests = [one for *_, one in birth["batches"]]
    assert len(set(digests)) == 8
    assert digests[:8] == digests[8:16] == digests[16:]
    assert [row[0] for row in birth["weights"]] == [5, 10, 20, 40, 48]
    assert [row[2] for row in birth["weights"]] == [5, 10, 20, 40, 48]
    assert len({row[3] for row in birth["weights"]}) == 4  # the last epoch changes none
    assert birth["seed"] == 5
    assert birth["loaders"][1]["epochs"] == 4
    assert birth["optimizers"][0]["lr_now"] == 0.01
    assert len(json.dumps(birth)) < 16384


def test_a_world_of_one_has_nobody_to_be_compared_with(tmp_path: Path) -> None:
    birth = trained(tmp_path, 1).birth
    assert (birth["batches"], birth["weights"]) == ([], [])


def test_a_loss_that_is_no_number_is_recorded(one_of_two: Box) -> None:
    loss = one_of_two.steps["loss"].tolist()
    assert loss[-12:] == [float("inf")] * 12
    assert all(abs(one) < 1e6 for one in loss[:36])
