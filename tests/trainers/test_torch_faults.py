import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from mgpu_trainers import datasets
from mgpu_trainers.failure_faults import Leak, Nan
from mgpu_trainers.options import OPTIONS
from mgpu_trainers.planting import DelayFault, Planted
from mgpu_trainers.pytorch.common import torch_data, torch_models
from mgpu_trainers.slow_faults import Slow, SlowLoader
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, default_collate

pytestmark = pytest.mark.slow

NAMES = next(option for option in OPTIONS if option.name == "model").choices


@pytest.mark.parametrize("name", NAMES)
def test_a_model_scores_each_class_of_its_data_and_learns(name: str) -> None:
    torch.manual_seed(0)
    source = torch_data.load_data(name)
    model = torch_models.build(name, source.classes)
    inputs, targets = default_collate([source.training[index] for index in range(8)])
    scores = model(inputs)
    assert scores.shape == (8, source.classes, *targets.shape[1:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(("name", "stages"), [("gpt-nano", 4), ("cnn-nano", 2)])
def test_the_stages_of_a_model_are_the_model(name: str, stages: int) -> None:
    source = torch_data.load_data(name)
    model = torch_models.build(name, source.classes)
    parts = [torch_models.stage(model, number, stages) for number in range(stages)]
    inputs, _ = default_collate([source.training[index] for index in range(2)])
    passed = inputs
    for part in parts:
        passed = part(passed)
    assert torch.equal(passed, model(inputs))
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_text_is_predicted_one_character_ahead() -> None:
    inputs, targets = torch_data.load_text().training[3]
    assert len(inputs) == datasets.CONTEXT
    assert torch.equal(inputs[1:], targets[:-1])


def test_no_sample_is_in_both_parts() -> None:
    text = torch_data.load_text()
    assert isinstance(text.training, torch_data.Text)
    assert isinstance(text.validation, torch_data.Text)
    assert len(text.validation) == datasets.VALIDATION_WINDOWS
    digits = torch_data.load_digits()
    assert (len(digits.training), len(digits.validation)) == (1500, 297)


def test_digits_are_what_their_description_says() -> None:
    digits = torch_data.load_digits()
    images = torch.stack([digits.training[index][0] for index in range(len(digits.training))])
    labels = {int(digits.training[index][1]) for index in range(len(digits.training))}
    assert images.shape == (1500, 1, 8, 8)
    assert (images.min().item(), images.max().item()) == (0, 1)
    assert labels == set(range(10))


@dataclass
class Clock:
    """Time that passes only where a test or a planted fault lets it pass."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(time, "perf_counter", fake.perf_counter)
    monkeypatch.setattr(time, "sleep", fake.sleep)
    return fake


class Work(torch.autograd.Function):
    """Takes a second forward and two seconds backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: Clock) -> torch.Tensor:
        ctx.clock = clock
        clock.now += 1
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.clock.now += 2
        return gradients[0], None


class Layer(torch.nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        worked = Work.apply(x * self.weight, self.clock)  # type: ignore[no-untyped-call]  # torch's
        return torch.as_tensor(worked)


class Model(torch.nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Layer(clock) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def take_steps(planted: Planted, clock: Clock, steps: int) -> Model:
    model = Model(clock)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: setattr(clock, "now", clock.now + 3))
    planted.attach(model, optimizer)
    for step in range(1, steps + 1):
        planted.begin(step)
        optimizer.zero_grad()
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("fault", "slept"),
    [
        (Slow(phase="forward", factor=1.5), [2, 2, 2]),
        (Slow(phase="forward", ms=20.0, start=2), [0.02, 0.02]),
        (Slow(phase="backward", factor=1.25), [0, 2, 2]),
        (Slow(phase="backward", ms=20.0, every=2), [0.02, 0.02]),
        (Slow(phase="optimizer", ms=5.0), [0.005] * 3),
        (Slow(phase="optimizer", factor=2.0), [3, 3, 3]),
        (Slow(phase="other", ms=7.0), [0.007] * 3),
    ],
)
def test_a_slow_phase_takes_as_much_longer_as_asked_for(
    clock: Clock, fault: Slow, slept: list[float]
) -> None:
    take_steps(Planted([fault], rank=1), clock, 3)
    assert clock.slept == pytest.approx(slept)


def test_validation_is_spared(clock: Clock) -> None:
    planted = Planted([Slow(phase="forward", ms=20.0), Leak(mb=1.0)], rank=1)
    model = take_steps(planted, clock, 1)
    planted.end()
    model(torch.ones(3))
    assert clock.slept == [0.02]


def test_gradients_are_no_numbers_in_one_step_and_weights_ever_after(clock: Clock) -> None:
    healthy = take_steps(Planted([Nan(step=3)], rank=1), clock, 2)
    assert all(torch.isfinite(parameter).all() for parameter in healthy.parameters())
    broken = take_steps(Planted([Nan(step=3)], rank=1), clock, 4)
    assert all(torch.isnan(parameter).all() for parameter in broken.parameters())


@pytest.mark.parametrize(
    "fault", [Slow(phase="input", ms=30.0, every=2), SlowLoader(ms=30.0, every=2)]
)
def test_batches_come_late_and_whole(clock: Clock, fault: DelayFault) -> None:
    dataset, collate = Planted([fault], rank=1).fetch(list(range(6)), default_collate)
    batches = [batch.tolist() for batch in DataLoader(dataset, 2, collate_fn=collate)]
    assert batches == [[0, 1], [2, 3], [4, 5]]
    assert clock.slept == pytest.approx([0.03, 0.03])


@pytest.mark.parametrize("model", NAMES)
def test_how_much_data_there_is_is_known_before_it_is_loaded(model: str) -> None:
    assert datasets.count_samples(model) == len(torch_data.load_data(model).training)


def test_a_heavy_stage_has_all_blocks_but_one_of_each_other() -> None:
    model = torch_models.build("gpt-nano", 8)
    parts = [torch_models.stage(model, number, 3, heavy=1) for number in range(3)]
    assert [len(list(part.get_submodule("blocks").children())) for part in parts] == [1, 2, 1]
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
