"""Data-parallel training with TPUStrategy.

    python -m mgpu_trainers.tensorflow.tpu --model cnn-nano --steps 200

Not tried on a TPU: the loop is that of the other strategies. TensorFlow, which talks while it
loads, is not loaded before the TPU was found.
"""

import sys

from mgpu_trainers import catalogue
from mgpu_trainers.tensorflow import tpu_check

NAME = "tf-tpu"


def main() -> None:
    """Trains as the command line says, or ends with one sentence where there is no TPU."""
    args = catalogue.arguments(catalogue.find(NAME))
    if why := tpu_check.missing(args.tpu, args.timeout):
        sys.exit(f"{NAME} needs a TPU: {why}")
    from mgpu_trainers.tensorflow.common import loop
    from mgpu_trainers.tensorflow.common.on_tpu import Tpu

    loop.main(Tpu)


if __name__ == "__main__":
    main()
