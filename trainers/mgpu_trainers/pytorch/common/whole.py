"""Checkpoints of weights that are divided among ranks: whole, as one process has them."""

from typing import Any

from torch import nn
from torch.distributed.checkpoint import state_dict as whole

OPTIONS = whole.StateDictOptions(full_state_dict=True, cpu_offload=True)


def state(model: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    return whole.get_state_dict(model, optimizer, options=OPTIONS)


def load(model: nn.Module, optimizer: Any, weights: Any, states: Any) -> None:
    """`states`: of weights by their names, or by their numbers as an optimizer alone gives them."""
    names = [name for name, _ in model.named_parameters()]
    (group,) = states["param_groups"]
    called = dict(zip(group["params"], names, strict=True))
    by_name: Any = {
        "state": {called[each]: state for each, state in states["state"].items()},
        "param_groups": [{**group, "params": names}],
    }
    whole.set_state_dict(
        model, optimizer, model_state_dict=weights, optim_state_dict=by_name, options=OPTIONS
    )
