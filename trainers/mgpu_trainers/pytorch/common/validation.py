"""What was learned, held against data that nobody trained on."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from mgpu_trainers import data


@torch.no_grad()
def validate(
    model: nn.Module, source: data.Data, device: torch.device, out: torch.device
) -> tuple[float, float]:
    """Loss and accuracy over all the validation data; `device`: where the model takes it."""
    model.eval()
    losses, hits = [], []
    for inputs, targets in DataLoader(source.validation, 32):
        scores, wanted = model(inputs.to(device)), targets.to(out)
        losses.append(cross_entropy(scores, wanted, reduction="none").flatten())
        hits.append((scores.argmax(1) == wanted).flatten())
    return torch.cat(losses).mean().item(), torch.cat(hits).float().mean().item()
