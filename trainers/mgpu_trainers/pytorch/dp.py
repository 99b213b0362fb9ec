"""DataParallel: one process divides each batch over its GPUs, with a thread for each.

    python -m mgpu_trainers.pytorch.dp --batch 32

Without GPUs it computes as if it were not there.
"""

import torch
from torch import nn

from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.single import Single


class Dp(Single):
    name = "torch-dp"

    def note(self) -> str | None:
        if self.place.device.type == "cpu":
            return "DataParallel divides batches over GPUs only: on the CPU this is torch-single"
        if torch.cuda.device_count() == 1:
            return "there is one GPU, so no batch is divided: this is torch-single"
        return None

    def wrap(self, model: nn.Module) -> nn.Module:
        unused = self.place.device.type == "cpu" and torch.cuda.is_available()
        return model if unused else nn.DataParallel(model)


if __name__ == "__main__":
    main(Dp)
