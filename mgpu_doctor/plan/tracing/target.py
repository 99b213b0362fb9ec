"""The function that the user points at: found, called, and what it returns read."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

DEFAULT = "plan"
"""The function's name where none is given."""

PROTOCOL = (
    "return (model, batch) or (model, batch, loss): a module, a function of the number of samples "
    "that makes a batch, and a function of model and batch that gives the loss (docs/plan.md)"
)
APART = (
    "put what runs under `if __name__ == '__main__':`, or write a small file with a function that "
    "builds the model (docs/plan.md) and name that"
)


class TargetError(Exception):
    """There is nothing to plan there; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a step is made of. `batch`: of so many samples; `loss`: a scalar."""

    model: nn.Module
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]


def find(target: str) -> Callable[[], Any]:
    """The function at `module:function` or `script.py:function`. Raises TargetError."""
    place, _, name = target.partition(":")
    name = name or DEFAULT
    try:
        function = getattr(_imported(place), name, None)
    except TargetError:
        raise
    except SystemExit as ended:
        why = f"{place} ends itself when it is imported (exit code {ended.code}), as scripts do"
        raise TargetError(f"{why} that read their arguments there: {APART}.") from None
    except Exception as error:
        why = f"{place} cannot be imported ({described(error)})"
        raise TargetError(f"{why}: {APART}.") from None
    if not callable(function):
        known = f"there is no function {name!r} in {place}"
        raise TargetError(f"{known}: name one as in {place}:FUNCTION; it must {PROTOCOL}.")
    return _without_arguments(function, f"{place}:{name}")


def read(returned: Any) -> Trained:
    """What the function returned. Raises TargetError where it is something else."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module):
        what = ", ".join(type(part).__name__ for part in parts)
        raise TargetError(f"the function returned ({what}); let it {PROTOCOL}.")
    if not all(callable(part) for part in parts[1:]):
        raise TargetError(f"batch and loss must be functions; let it {PROTOCOL}.")
    return Trained(parts[0], parts[1], parts[2] if len(parts) == 3 else _own_loss)


def tensors(batch: Any) -> Iterable[torch.Tensor]:
    """All tensors inside a batch, however it is nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        yield from (tensor for each in batch.values() for tensor in tensors(each))
    elif isinstance(batch, (tuple, list)):
        yield from (tensor for each in batch for tensor in tensors(each))


def described(error: BaseException) -> str:
    """An exception on one line."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first}".rstrip(": ")


def _own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of a model that computes its loss by itself."""
    if isinstance(batch, dict):
        made = model(**batch)
    else:
        made = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    loss = made.get("loss") if isinstance(made, dict) else getattr(made, "loss", made)
    if isinstance(loss, torch.Tensor) and loss.ndim == 0:
        return loss
    raise TargetError(f"the model gives no loss by itself; let the function {PROTOCOL}.")


def _imported(place: str) -> ModuleType:
    torch.distributed.init_process_group = _no_group  # what trains with others is planned alone
    if not place.endswith(".py"):
        sys.path.insert(0, "")
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise TargetError(f"there is no file {place}: name a script or a module, as module:NAME.")
    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [place]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _without_arguments(function: Callable[..., Any], name: str) -> Callable[[], Any]:
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise TargetError(
            f"{name} takes arguments: name a function that takes none; it must {PROTOCOL}."
        ) from None
    except ValueError:
        pass  # a builtin tells no signature
    return function


def _no_group(*_: Any, **__: Any) -> None:
    raise TargetError(f"it starts a process group, which planning cannot join: {APART}.")
