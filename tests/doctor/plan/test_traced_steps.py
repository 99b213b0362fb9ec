"""A step traced with fake tensors against the same step computed in earnest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from mgpu_trainers.pytorch import torch_plan_models
from mgpu_trainers.pytorch.common.torch_models import TransformerBlock
from torch import nn
from torch.utils.checkpoint import checkpoint

from mgpu_doctor.analysis.memory.allocator import round_size
from mgpu_doctor.analysis.memory.allocator_replay import replay
from mgpu_doctor.analysis.memory.memory_plan import Checkpointing, Optimizer, Precision, Settings
from mgpu_doctor.analysis.memory.stream import Allocated, Kind, Phase, Stream
from mgpu_doctor.analysis.memory.stream_edits import interpolate_batch, offload_optimizer
from mgpu_doctor.plan.tracing.storage_watcher import LSTM
from mgpu_doctor.plan.tracing.torch_step import find_repeated_blocks, trace
from mgpu_doctor.plan.tracing.user_function import StepError, TargetError

pytestmark = pytest.mark.slow

NONE, HALF, FULL = Checkpointing.NONE, Checkpointing.HALF, Checkpointing.FULL
SGD, ADAM, ADAMW = Optimizer.SGD, Optimizer.ADAM, Optimizer.ADAMW
KIB = 1024
WIDTH, SAMPLES = 256, 64


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine are slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def transformer() -> Any:
    """Tokens in and out; first and last layer share their weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(32, 16),
        nn.Sequential(TransformerBlock(16, 2), TransformerBlock(16, 2)),
        nn.LayerNorm(16),
        nn.Linear(16, 32, bias=False),
    )
    model[3].weight = model[0].weight
    return model, lambda samples: torch.randint(32, (samples, 8)), _next_token


def _next_token(model: nn.Module, tokens: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def encoder() -> Any:
    """Its layers are copies of one."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, lambda samples: torch.randn(samples, 8, 32), _squares


MODELS = [transformer, encoder, torch_plan_models.cnn_nano]


@pytest.mark.parametrize("function", MODELS)
@pytest.mark.parametrize(
    "settings",
    [
        Settings(1, 1, NONE, Precision.FP32, ADAMW),
        Settings(3, 2, NONE, Precision.FP32, SGD),
        Settings(4, 1, NONE, Precision.FP32, ADAM),
        Settings(4, 1, FULL, Precision.FP32, SGD),
        Settings(2, 2, FULL, Precision.FP32, ADAMW),
        Settings(2, 1, HALF, Precision.FP32, ADAM),
    ],
)
def test_a_fake_step_takes_and_frees_what_a_real_one_does(
    function: Any, settings: Settings
) -> None:
    fake = trace(function, settings, real=False)
    real = trace(function, settings, real=True)
    assert replay(fake.stream).peak_allocated == replay(real.stream).peak_allocated
    assert _contents_of(fake.stream) == _contents_of(real.stream)
    assert fake.flops == real.flops


@pytest.mark.parametrize("function", MODELS)
def test_in_bf16_too_though_copies_of_weights_are_freed_in_any_order(function: Any) -> None:
    settings = Settings(3, precision=Precision.BF16)
    fake, real = (trace(function, settings, real=real).stream for real in (False, True))
    assert replay(fake).peak_allocated == replay(real).peak_allocated
    assert _taken(fake) == _taken(real)


def _taken(stream: Stream) -> list[Any]:
    """Fake batch norm has its tiny means in another type."""
    taken = [event for event in stream.events if isinstance(event, Allocated)]
    return [(event.block, event.kind, event.phase, round_size(event.size)) for event in taken]


def test_without_its_states_and_its_update_adamw_is_sgd() -> None:
    adamw, sgd = (trace(transformer, Settings(3, optimizer=o), real=False) for o in (ADAMW, SGD))
    assert (
        replay(offload_optimizer(adamw.stream)).peak_allocated == replay(sgd.stream).peak_allocated
    )


def _contents_of(stream: Stream) -> list[Any]:
    return [*stream.events, tuple(stream.steps), stream.samples, stream.parameters]


@pytest.mark.parametrize("function", MODELS)
def test_a_step_at_any_batch_follows_from_two(function: Any) -> None:
    settings = Settings(2)
    two, four, seven = (
        trace(function, replace(settings, batch=batch), real=False).stream for batch in (2, 4, 7)
    )
    for first, second in ((two, four), (four, two)):
        found = interpolate_batch(first, second, 7)
        assert found is not None
        assert _contents_of(found) == _contents_of(seven)


def _linear(loss: Any = None) -> Any:
    """One matrix of 256 KiB, a batch of 64 KiB, so outputs of 64 KiB."""
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    return model, lambda samples: torch.ones(samples, WIDTH), loss or _squares


def _squares(model: nn.Module, batch: Any) -> torch.Tensor:
    return torch.as_tensor(model(batch)).pow(2).sum()


def test_each_block_is_known_for_what_it_is() -> None:
    stream = trace(_linear, Settings(SAMPLES, optimizer=ADAM), real=False).stream
    taken = [event for event in stream.events if isinstance(event, Allocated)]
    first = [event for event in taken if event.block < _first_block_of_second_step(stream)]
    sizes = {kind: [each.size for each in first if each.kind is kind] for kind in Kind}
    assert sizes[Kind.WEIGHTS] == [256 * KIB]
    assert sizes[Kind.BATCH] == [64 * KIB]
    assert sizes[Kind.GRADIENTS] == [256 * KIB]
    assert sizes[Kind.OPTIMIZER] == [256 * KIB, 256 * KIB]
    assert sizes[Kind.ACTIVATIONS][0] == 64 * KIB  # the output, of which pow needs what it was
    assert {each.phase for each in first if each.kind is Kind.GRADIENTS} == {Phase.BACKWARD}
    assert stream.parameters == WIDTH * WIDTH
    states = [each for each in taken if each.kind is Kind.OPTIMIZER]
    assert len(states) == 2  # the second step finds them there
    assert stream.steps[0] == 1  # set-up is the weights alone


def _first_block_of_second_step(stream: Stream) -> int:
    later = stream.events[stream.steps[1] :]
    return next(event.block for event in later if isinstance(event, Allocated))


def test_making_the_batch_is_the_hosts_work() -> None:
    def plan() -> Any:
        model, _, loss = _linear()
        return model, lambda samples: torch.ones(samples, 3 * WIDTH)[:, :WIDTH].clone() * 2, loss

    stream = trace(plan, Settings(SAMPLES), real=False).stream
    assert 3 * 64 * KIB not in {
        event.size for event in stream.events if isinstance(event, Allocated)
    }


def test_dropout_keeps_a_byte_an_element_as_on_cuda() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.dropout(model(batch), 0.5).sum()

    def block(model: nn.Module, batch: Any) -> torch.Tensor:
        return torch.as_tensor(checkpoint(loss, model, batch, use_reentrant=False))

    for each in (loss, block):
        stream = trace(lambda each=each: _linear(each), Settings(SAMPLES), real=False).stream  # type: ignore[misc]
        masks = [e for e in stream.events if isinstance(e, Allocated) and e.size == SAMPLES * WIDTH]
        assert masks


def test_bf16_keeps_what_cuda_keeps_in_float32() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.layer_norm(model(batch), (WIDTH,)).sum()

    settings = Settings(SAMPLES, precision=Precision.BF16)
    stream = trace(lambda: _linear(loss), settings, real=False).stream
    norms = [e for e in stream.events if isinstance(e, Allocated) and e.name.endswith("layer_norm")]
    assert norms[0].size == 64 * KIB  # four bytes an element


def test_a_step_that_asks_for_autocast_on_cuda_itself_is_traced_in_it() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return _squares(model, batch)

    own = trace(lambda: _linear(loss), Settings(SAMPLES), real=False)
    asked = trace(_linear, Settings(SAMPLES, precision=Precision.BF16), real=False)
    assert _taken(own.stream) == _taken(asked.stream)
    assert _taken(own.stream) != _taken(trace(_linear, Settings(SAMPLES), real=False).stream)


def test_a_number_that_the_step_reads_is_made_up_and_reported() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        made = _squares(model, batch)
        assert made.item() == 1.0
        return made

    assert trace(lambda: _linear(loss), Settings(2), real=False).values_read == 2


def test_what_an_lstm_keeps_is_not_seen_and_that_is_reported() -> None:
    def recurrent() -> Any:
        model = nn.LSTM(8, 8)
        return model, lambda samples: torch.ones(4, samples, 8), lambda m, b: m(b)[0].sum()

    assert trace(recurrent, Settings(2), real=False).notes == (LSTM,)
    assert not trace(recurrent, Settings(2), real=True).notes  # there the kernel's own is counted
    assert not trace(lambda: _linear(_squares), Settings(2), real=False).notes


def test_a_step_that_branches_on_a_tensor_is_left_to_a_real_run() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        made = _squares(model, batch)
        return made if made > 0 else -made

    with pytest.raises(StepError, match="branches on a tensor's value") as caught:
        trace(lambda: _linear(loss), Settings(2), real=False)
    assert caught.value.parameters == WIDTH * WIDTH
    assert trace(lambda: _linear(loss), Settings(2), real=True).stream.parameters == WIDTH * WIDTH


def test_a_model_that_is_meant_for_a_gpu_is_built_all_the_same() -> None:
    def plan() -> Any:
        model = nn.Linear(WIDTH, WIDTH, bias=False).to("cuda")
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        return model, lambda samples: torch.ones(samples, WIDTH, device=device).cuda(), _squares

    plain = trace(_linear, Settings(SAMPLES), real=False).stream
    assert trace(plan, Settings(SAMPLES), real=False).stream == plain


def test_a_model_in_another_type_keeps_the_weights_that_it_shares() -> None:
    def plan() -> Any:
        model, batch, loss = transformer()
        return model.to("cpu").bfloat16(), batch, loss

    fake, real = (trace(plan, Settings(3), real=real).stream for real in (False, True))
    assert _contents_of(fake) == _contents_of(real)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda: nn.Linear(2, 2), "returned (Linear)"),
        (lambda: (nn.Linear(2, 2), torch.ones(2)), "must be functions"),
        (lambda: (nn.Linear(2, 2), lambda _: "a"), "contains no tensors"),
        (lambda: (nn.Linear(2, 2), lambda n: torch.ones(n, 2)), "returns no loss itself"),
        (lambda: (nn.Identity(), lambda n: torch.ones(n, 2)), "no parameters"),
        (lambda: _linear(lambda model, batch: model(batch)), "of shape (2, 256)"),
        (lambda: _linear(lambda *_: "x"), "not str"),
        (lambda: _linear(lambda _, batch: batch.sum()), "does not depend on a trained parameter"),
    ],
)
def test_what_describes_no_step_is_refused_with_a_sentence(returned: Any, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        trace(returned, Settings(2), real=False)
    assert message in str(caught.value)


def test_checkpointing_needs_something_repeated() -> None:
    with pytest.raises(TargetError, match="nothing in the model is repeated"):
        trace(_linear, Settings(2, checkpointing=FULL), real=False)


def test_of_a_resnet_the_blocks_are_recomputed_not_the_stages() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    stages = [nn.Sequential(_Two(), _Two(), _Two()), nn.Sequential(_Two(), _Two())]
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.ModuleList(stages))
    assert len(list(find_repeated_blocks(model))) == 5
    assert len(list(find_repeated_blocks(nn.ModuleList([block(), block()])))) == 2


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
