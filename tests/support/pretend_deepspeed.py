"""What DeepSpeed's engine does with streams, for a device that has them: gradients are reduced in a
stream of their own for which the host waits after the backward pass, and at stage 3 the weights of
each module are gathered in another one for which the stream that computes waits.

A test copies this file to `deepspeed/runtime/engine.py`, so it imports nothing of ours. The calls
and their order are those of DeepSpeed 0.19 (`runtime/zero/stage_1_and_2.py`, `stage3.py` and
`partitioned_param_coordinator.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

device: Any = getattr(torch, "pretend", None)


class DeepSpeedEngine(torch.nn.Module):
    """Of a sequence of modules. Of two at a time, weights are gathered and gradients reduced."""

    def __init__(self, module: Any, optimizer: Any, stage: int) -> None:
        super().__init__()
        self.module, self.optimizer, self.stage = module, optimizer, stage
        self._reduction = device.Stream()
        self._gathering = device.Stream()
        for number, block in enumerate(module):
            if stage == 3 and number % 2 == 0:
                block.register_forward_pre_hook(self._fetch)
            if stage == 3 and number % 2:
                block.register_full_backward_pre_hook(self._fetch)
            if number % 2 == 0:
                block.linear.weight.register_post_accumulate_grad_hook(self._reduce)

    def zero_optimization_stage(self) -> int:
        """As DeepSpeed's."""
        return self.stage

    def forward(self, *inputs: Any) -> Any:
        """As of Module."""
        return self.module(*inputs)

    def _fetch(self, block: Any, _: Any) -> None:
        with torch.no_grad(), device.stream(self._gathering):
            self._gathering.wait_stream(device.current_stream())
            weights = block.linear.bias
            gathered = weights.new_empty(dist.get_world_size() * weights.numel())
            dist.all_gather_into_tensor(gathered, weights.detach(), async_op=True).wait()
        device.current_stream().wait_stream(self._gathering)

    def _reduce(self, parameter: Any) -> None:
        self._reduction.wait_stream(device.current_stream())
        with device.stream(self._reduction):
            dist.all_reduce(parameter.grad)

    def backward(self, loss: Any) -> None:
        """As DeepSpeed's."""
        loss.backward()
        self._backward_epilogue()

    def _backward_epilogue(self) -> None:
        if self.stage == 3:
            self._reduction.synchronize()
        else:
            device.synchronize()

    def step(self) -> None:
        """As DeepSpeed's."""
        self._take_model_step(None)

    def _take_model_step(self, _: Any) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
