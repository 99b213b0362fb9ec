"""Data-parallel training with TPUStrategy.

    python -m mgpu_trainers.tensorflow.tf_tpu --model cnn-nano --steps 200

Untested on a TPU: the loop is that of the other strategies. A process of its own looks for the TPU
first, as TensorFlow may wait for one forever; TensorFlow is loaded here once it was found.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from mgpu_trainers import catalogue

NAME = "tf-tpu"

_NO_TPU = "this TensorFlow finds no TPU on this machine"
ABSENT = {
    "Please provide a TPU Name": "no name is given, and none is in the environment; try --tpu NAME",
    "ConfigureDistributedTPU": _NO_TPU,
    "TPUs not found in the cluster": _NO_TPU,
}
"""What TensorFlow says, and what that means."""

_CONNECT = "import sys; from mgpu_trainers.tensorflow import tf_tpu; tf_tpu.connect(sys.argv[1])"


def missing_tpu(
    name: str, timeout: float, start: Callable[..., Any] = subprocess.run
) -> str | None:
    """Why there is no TPU of that name, as the rest of a sentence; None: there is one."""
    command = [sys.executable, "-c", _CONNECT, name]
    try:
        ended = start(command, capture_output=True, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"{name!r} did not answer within {timeout:g} s"
    return None if ended.returncode == 0 else explain_failure(ended.stderr)


def explain_failure(output: str) -> str:
    """What TensorFlow's error output means, as the rest of a sentence."""
    for text, meaning in ABSENT.items():
        if text in output:
            return meaning
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"TensorFlow says: {lines[-1][:200]}" if lines else "TensorFlow does not say why"


def connect(name: str) -> Any:
    """TensorFlow's resolver for the TPU; raises TensorFlow's exception if there is none."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    if name != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return resolver


def main() -> None:
    """Trains as the command line says, or ends with one sentence if there is no TPU."""
    args = catalogue.arguments(catalogue.find(NAME))
    if why := missing_tpu(args.tpu, args.timeout):
        sys.exit(f"{NAME} needs a TPU: {why}")
    import tensorflow as tf

    from mgpu_trainers.tensorflow.common import tf_loop
    from mgpu_trainers.tensorflow.common.tf_strategy import Strategy

    class Tpu(Strategy):
        name = NAME

        def join(self) -> Any:
            return tf.distribute.TPUStrategy(connect(self.args.tpu))

    tf_loop.main(Tpu)


if __name__ == "__main__":
    main()
