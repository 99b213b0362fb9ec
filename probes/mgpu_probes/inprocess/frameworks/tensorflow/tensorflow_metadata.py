"""Adds TensorFlow's version, precision and devices to the process metadata."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from . import distribution_strategies, function_calls, replica_reductions
from .tensorflow_support import loaded_module

probe: ProbeContext

_ON_HOST = frozenset({"CPU", "XLA_CPU"})
"""Kinds of devices on which the host itself computes."""
_UNMEASURED = (
    "on a device, TensorFlow's time stamps may say when work was queued or when it was done, which "
    "has not been measured"
)


def patch(distribute_lib: ModuleType) -> None:
    """Applies the patches of two modules here to TensorFlow's module of strategies."""
    distribution_strategies.patch(distribute_lib)
    replica_reductions.patch(distribute_lib)


def describe() -> dict[str, Any]:
    """Version, precision and devices; empty unless this process trains with TensorFlow."""
    tf = loaded_module("tensorflow")
    if tf is None or not (
        probe.objects.strategies
        or distribution_strategies.newest_strategy.name
        or function_calls.current_call.trained
    ):
        return {}
    if not function_calls.current_call.trained and probe.trained:
        return {}  # another framework trains
    facts = {
        "framework": "tensorflow",
        "framework_version": str(getattr(tf, "__version__", "")) or None,
        "keras": _version("keras") or _version("tf_keras"),
        "precision": _policy(),
        "jit": function_calls.current_call.jit,
        "seed": None,
    }
    if _is_initialized():
        facts |= _devices(tf) | distribution_strategies.describe_replicas()
    return facts


def _devices(tf: Any) -> dict[str, Any]:
    kinds = {
        logical_device.device_type for logical_device in tf.config.list_logical_devices()
    } - _ON_HOST
    kind = "GPU" if "GPU" in kinds else min(kinds, default=None)
    probe.computes_on(None if kind is None else f"{kind.lower()}:0")
    threading = tf.config.threading
    untimed = {} if probe.accelerator is None else {"untimed": _UNMEASURED}
    return {
        **untimed,
        "device": probe.accelerator or "cpu",
        "clock": probe.device_clock,
        "threads": threading.get_intra_op_parallelism_threads() or None,
        "interop_threads": threading.get_inter_op_parallelism_threads() or None,
        "eager": bool(tf.config.functions_run_eagerly()),
    }


def _is_initialized() -> bool:
    """Whether TensorFlow has initialized its devices. Asking for them earlier would initialize
    them, and the program could no longer configure them."""
    context = loaded_module("tensorflow.python.eager.context")
    initialized_context = getattr(context, "context_safe", lambda: None)()
    return bool(getattr(initialized_context, "_initialized", False))


def _version(name: str) -> str | None:
    version = getattr(loaded_module(name), "__version__", None)
    return str(version) if version is not None else None


def _policy() -> str | None:
    """Keras' precision policy, such as `mixed_bfloat16`; None: unknown."""
    mixed = getattr(loaded_module("keras") or loaded_module("tf_keras"), "mixed_precision", None)
    policy = getattr(mixed, "dtype_policy", None) or getattr(mixed, "global_policy", None)
    return str(policy().name) if callable(policy) else None
