"""Training with one process on one device.

python -m mgpu_trainers.pytorch.single --model cnn-nano --steps 200
"""

from mgpu_trainers.pytorch.common import process_group
from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.common.torch_strategy import Strategy


class Single(Strategy):
    name = "torch-single"
    join = staticmethod(process_group.run_alone)


if __name__ == "__main__":
    main(Single)
