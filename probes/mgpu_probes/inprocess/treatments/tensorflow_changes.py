"""Treatments of TensorFlow: tf.data, what Keras compiles, and how strategies reduce."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from ..wrap import hidden
from .call_arguments import ALREADY_SET, edit_call, setting

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply, Arguments
    from .treatment_adapter import Change

NOT_CACHEABLE = "order-or-length-varies"
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


def _cache_maps(change: Change, _: ProbeContext, datasets: ModuleType) -> None:
    """Keeps what the first map of a pipeline makes in memory. Not after a shuffle, whose order
    would stay the same, nor after a repeat, which may be endless."""
    dataset = datasets.DatasetV2
    original = dataset.map

    @functools.wraps(original)
    def map_and_cache(this: Any, *args: Any, **kwargs: Any) -> Any:
        mapped = original(this, *args, **kwargs)
        reason = _why_not_cached(this)
        if reason is not None:
            change.refuse(reason)
            return mapped
        change.note(sys._getframe(1))
        return mapped.cache()

    dataset.map = hidden(map_and_cache)


def _why_not_cached(dataset: Any) -> str | None:
    """Why the results of a map over this dataset are not kept; None: they can be."""
    while dataset is not None:
        name = type(dataset).__name__
        if "Cache" in name:
            return ALREADY_SET
        if "Shuffle" in name or "Repeat" in name:
            return NOT_CACHEABLE
        dataset = getattr(dataset, "_input_dataset", None)
    return None


def _compile_with_xla(change: Change, _: ProbeContext, trainer: ModuleType) -> None:
    """Compiles the training step of models that Keras compiles."""
    original = trainer.Trainer.compile
    edit_call(trainer.Trainer, "compile", change, setting(original, "jit_compile", True))


def _set_in_strategy(name: str, argument: str, make: Callable[[ModuleType, Any], Any]) -> Apply:
    """Sets an argument of a strategy that the script does not set. `make`: its value, by the
    strategy's module and the treatment's value."""

    def apply(change: Change, _: ProbeContext, strategies: ModuleType) -> None:
        def edit(arguments: Arguments) -> str | None:
            if arguments.get(argument) is not None:
                return ALREADY_SET
            arguments[argument] = make(strategies, change.value)
            return None

        edit_call(getattr(strategies, name), "__init__", change, edit)

    return apply


def _make_packs(strategies: Any, mebibytes: int) -> Any:
    return strategies.collective_util.Options(bytes_per_pack=mebibytes << 20)


def _make_hierarchical(strategies: Any, _: Any) -> Any:
    return strategies.cross_device_ops_lib.HierarchicalCopyAllReduce()


def _mix_precision(change: Change, _: ProbeContext, policies: ModuleType) -> None:
    """Lets layers that are made from now on compute in bfloat16."""
    policies.set_dtype_policy("mixed_bfloat16")
    change.note()


_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_DISTRIBUTE = "tensorflow.python.distribute"
APPLICATIONS: dict[str, dict[str, Apply]] = {
    "tf-prefetch": {_DATASETS: _prefetch},
    "tf-parallel-map": {_DATASETS: _map_in_parallel},
    "tf-cache": {_DATASETS: _cache_maps},
    "keras-jit": {"keras.src.trainers.trainer": _compile_with_xla},
    "tf-pack-size": {
        f"{_DISTRIBUTE}.collective_all_reduce_strategy": _set_in_strategy(
            "CollectiveAllReduceStrategy", "communication_options", _make_packs
        )
    },
    "tf-hierarchical-copy": {
        f"{_DISTRIBUTE}.mirrored_strategy": _set_in_strategy(
            "MirroredStrategy", "cross_device_ops", _make_hierarchical
        )
    },
    "keras-mixed-bf16": {"keras.src.dtype_policies.dtype_policy": _mix_precision},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
