"""Trains until the GPU's memory is full, or full of holes."""

from __future__ import annotations

import argparse

import torch

LIMIT = 2 << 30
"""Bytes that this process may take."""
PIECE, PIECES = 24 << 20, 72

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=("full", "fragmented"))
how = parser.parse_args().how
_, total = torch.cuda.mem_get_info()
torch.cuda.set_per_process_memory_fraction(LIMIT / total)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
kept = []
for step in range(1_000):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if how == "full":
        kept.append(torch.empty(PIECE, dtype=torch.uint8, device="cuda"))
    elif step == 20:
        whole = torch.empty(PIECES * PIECE, dtype=torch.uint8, device="cuda")
        del whole  # torch keeps it, and cuts the pieces out of it
        kept = [torch.empty(PIECE, dtype=torch.uint8, device="cuda") for _ in range(PIECES)]
        kept = kept[::8]  # seven eighths are free, in holes of seven pieces
    elif step == 40:
        torch.empty(16 * PIECE, dtype=torch.uint8, device="cuda")
