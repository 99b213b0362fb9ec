"""Training with one process on one device.

python -m mgpu_trainers.tensorflow.tf_single --model cnn-nano --steps 200
"""

from mgpu_trainers.tensorflow.common.tf_loop import main
from mgpu_trainers.tensorflow.common.tf_strategy import Strategy


class Single(Strategy):
    name = "tf-single"


if __name__ == "__main__":
    main(Single)
