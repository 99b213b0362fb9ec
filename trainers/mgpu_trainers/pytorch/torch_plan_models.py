"""The built-in models for `mgpu-doctor plan`: each function returns model, batch and loss."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mgpu_trainers.datasets import CONTEXT
from mgpu_trainers.pytorch.common import torch_data, torch_models

Batch = tuple[torch.Tensor, torch.Tensor]
Planned = tuple[nn.Module, Callable[[int], Batch], Callable[[nn.Module, Batch], torch.Tensor]]

DIGITS = 10
PIXELS = 224
"""Width and height of ImageNet's pictures, as they are usually cut."""


def gpt_nano() -> Planned:
    classes = torch_data.load_text().classes
    batch = partial(_text, context=CONTEXT, characters=classes)
    return torch_models.build("gpt-nano", classes), batch, _loss


def cnn_nano() -> Planned:
    return (
        torch_models.build("cnn-nano", DIGITS),
        partial(_images, shape=(1, 8, 8), classes=DIGITS),
        _loss,
    )


def gpt2_small() -> Planned:
    batch = partial(
        _text, context=torch_models.GPT2_CONTEXT, characters=torch_models.GPT2_VOCABULARY
    )
    return torch_models.Gpt2Small(), batch, _flat_loss


def resnet50() -> Planned:
    batch = partial(_images, shape=(3, PIXELS, PIXELS), classes=torch_models.IMAGENET_CLASSES)
    return torch_models.ResNet50(), batch, _loss


def _text(samples: int, context: int, characters: int) -> Batch:
    window = torch.randint(characters, (samples, context))
    return window, window.clone()


def _images(samples: int, shape: tuple[int, ...], classes: int) -> Batch:
    return torch.randn(samples, *shape), torch.randint(classes, (samples,))


def _loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, targets = batch
    return cross_entropy(model(inputs), targets)


def _flat_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean loss of scores whose last dimension is the classes."""
    inputs, targets = batch
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
