"""Treatments of TensorFlow: pipelines of tf.data, and what Keras compiles."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..wrap import hidden
from .call_arguments import ALREADY_SET, edit_call, setting

if TYPE_CHECKING:
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply, Arguments
    from .treatment_adapter import Change

_AUTOTUNE = -1
"""`tf.data.AUTOTUNE`."""


def _prefetch(change: Change, _: ProbeContext, datasets: ModuleType) -> None:
    """Prepares batches in advance where a dataset is iterated over that does not do so itself."""
    dataset = datasets.DatasetV2
    original = dataset.__iter__

    @functools.wraps(original)
    def iterate(this: Any) -> Any:
        if "Prefetch" in type(this).__name__:
            change.refuse(ALREADY_SET)
            return original(this)
        change.note()
        return original(this.prefetch(_AUTOTUNE))

    dataset.__iter__ = hidden(iterate)


def _map_in_parallel(change: Change, _: ProbeContext, datasets: ModuleType) -> None:
    """Lets maps that work on one element at a time work on so many. Their order stays the same."""

    def edit(arguments: Arguments) -> str | None:
        if arguments.get("num_parallel_calls") is not None:
            return ALREADY_SET
        arguments["num_parallel_calls"] = change.value
        return None

    edit_call(datasets.DatasetV2, "map", change, edit)


def _compile_with_xla(change: Change, _: ProbeContext, trainer: ModuleType) -> None:
    """Compiles the training step of models that Keras compiles."""
    original = trainer.Trainer.compile
    edit_call(trainer.Trainer, "compile", change, setting(original, "jit_compile", True))


def _mix_precision(change: Change, _: ProbeContext, policies: ModuleType) -> None:
    """Lets layers that are made from now on compute in bfloat16."""
    policies.set_dtype_policy("mixed_bfloat16")
    change.note()


_DATASETS = "tensorflow.python.data.ops.dataset_ops"
APPLICATIONS: dict[str, dict[str, Apply]] = {
    "tf-prefetch": {_DATASETS: _prefetch},
    "tf-parallel-map": {_DATASETS: _map_in_parallel},
    "keras-jit": {"keras.src.trainers.trainer": _compile_with_xla},
    "keras-mixed-bf16": {"keras.src.dtype_policies.dtype_policy": _mix_precision},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
