"""Is there a TPU? Asked in a process of its own, as TensorFlow may wait for one without an end.

python -m mgpu_trainers.tensorflow.tpu_check NAME
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

ABSENT = {
    "Please provide a TPU Name": "no name is given, and none is in the environment; try --tpu NAME",
    "ConfigureDistributedTPU": "this TensorFlow finds no TPU on this machine",
    "TPUs not found in the cluster": "this TensorFlow finds no TPU on this machine",
}
"""What TensorFlow says, and what that means."""


def missing(name: str, timeout: float, start: Callable[..., Any] = subprocess.run) -> str | None:
    """Why there is none of that name, as the rest of a sentence; None: there is one."""
    command = [sys.executable, "-m", __name__, name]
    try:
        ended = start(command, capture_output=True, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"{name!r} did not answer within {timeout:g} s"
    return None if ended.returncode == 0 else explain(ended.stderr)


def explain(said: str) -> str:
    for text, meaning in ABSENT.items():
        if text in said:
            return meaning
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"TensorFlow says: {lines[-1][:200]}" if lines else "TensorFlow does not say why"


def look(name: str) -> None:
    """Ends with TensorFlow's exception where there is none."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    if name != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)


if __name__ == "__main__":
    look(sys.argv[1])
