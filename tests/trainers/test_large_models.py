"""Models of realistic sizes, without their weights."""

import pytest
import torch
from mgpu_trainers.pytorch.common import torch_models
from torch import nn

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [(torch_models.Gpt2Small, 124_439_808), (torch_models.ResNet50, 25_557_032)],
)
def test_they_have_as_many_parameters_as_published(kind: type[nn.Module], parameters: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in kind().parameters()) == parameters


def test_small_ones_of_their_kind_give_a_score_for_each_class() -> None:
    text = torch_models.Gpt2Small(width=16, depth=1, heads=2)
    assert text(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, torch_models.GPT2_VOCABULARY)
    images = torch_models.ResNet50(depths=(1, 2), width=8)
    assert images(torch.zeros(2, 3, 32, 32)).shape == (2, torch_models.IMAGENET_CLASSES)
