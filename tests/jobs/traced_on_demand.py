"""Is traced by the probe from step 30 on, and does what its argument says after step 35."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hooks: Any = sys.modules["_mgpu_probe.frameworks.torch.on_demand_trace"]
tracing = hooks.tracing
hooks.PATIENCE = 0.0


def step() -> None:
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


for number in range(60):
    step()
    if number == 30:
        longest = 1 if sys.argv[1] == "evaluate" else 60_000
        tracing.begin({"at": 0, "steps": 20, "milliseconds": longest})
    if number == 35 and sys.argv[1] == "exit":
        sys.exit(7)
    if number == 35 and sys.argv[1] == "profile":
        with torch.profiler.profile() as own:
            step()
        assert len(own.events())
    if number == 35 and sys.argv[1] == "fork":
        child = os.fork()
        if not child:
            step()
            os._exit(torch._C._autograd._profiler_enabled())
        assert os.waitpid(child, 0)[1] == 0
    if number == 58 and sys.argv[1] == "cancel":
        assert tracing.state == "done"
        tracing.cancel()
    while sys.argv[1] == "evaluate" and tracing.state == "tracing":
        torch.randn(4, 8) @ model.weight
assert not torch._C._autograd._profiler_enabled()
print(tracing.state, tracing.steps, tracing.why)
