"""The meaning of each code that is found only in console text, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mgpu_doctor.signatures.signature import Signature

SUMMARIES = {
    "failed-checkpoint": "A checkpoint could not be saved or loaded: it does not match the model, "
    "is damaged, or does not exist.",
    "failed-dataloader-worker": "A data-loader worker died or failed.",
    "failed-deepspeed": "DeepSpeed rejected its configuration or failed in its own code.",
    "failed-device-assert": "A check inside a GPU kernel failed, mostly an index out of range.",
    "failed-device-mismatch": "Tensors of one operation are on different devices.",
    "failed-driver-too-old": "The NVIDIA driver is too old for the CUDA version in use.",
    "failed-fsdp": "FSDP rejected its configuration or how it is used.",
    "failed-gloo": "A connection or collective of gloo failed.",
    "failed-horovod-stall": "Horovod's ranks wait for a tensor that some of them never submit.",
    "failed-illegal-access": "A GPU kernel accessed invalid memory.",
    "failed-main-guard": "A script that starts processes lacks `if __name__ == '__main__':`.",
    "failed-nccl-init": "NCCL could not set up its communication.",
    "failed-nccl-timeout": "An NCCL collective timed out.",
    "failed-no-kernel-image": "The binaries contain no code for this GPU.",
    "failed-peer-to-peer": "GPUs cannot reach each other's memory directly.",
    "failed-port-in-use": "The rendezvous port is already in use.",
    "failed-preempted": "The scheduler or the cloud took the machine away.",
    "failed-reentrant-backward": "A parameter is used more than once in a backward pass under DDP.",
    "failed-shape-mismatch": "The shapes of an operation's tensors do not match.",
    "failed-spawn-pickling": "An object that a new process needs cannot be pickled.",
    "failed-tf-batch-indivisible": "A batch cannot be divided among TensorFlow's replicas.",
    "failed-tf-collective": "A TensorFlow collective failed.",
    "failed-tf-config": "TF_CONFIG is missing or wrong, or there is no TPU.",
    "failed-tf-cudnn": "TensorFlow could not use cuDNN.",
    "failed-tf-invalid-argument": "TensorFlow got tensors that do not match an operation, or a "
    "request that its strategy does not support.",
    "failed-tf-resource-exhausted": "TensorFlow ran out of memory or another resource.",
    "failed-tf-worker-missing": "A worker of the TensorFlow cluster is missing.",
    "failed-unused-parameters": "DDP waits for gradients of parameters that the loss did not use.",
    "failed-visible-devices": "CUDA_VISIBLE_DEVICES hides or names the wrong devices.",
    "failed-world-size": "The number of ranks is not the one that the job was configured for.",
    "gpu-ecc": "A GPU's memory has errors that could not be corrected.",
    "gpu-lost": "A GPU fell off the bus or no longer answers.",
    "gpu-missing": "Fewer GPUs are available than requested.",
    "gpu-xid": "The driver reported an Xid error of a GPU.",
    "memory-preallocated": "TensorFlow reserves all of a GPU's memory at start.",
    "nvlink-down": "A link between GPUs is down or has errors.",
    "oom-device": "A GPU's memory ran out.",
    "oom-foreign-process": "Another process holds a part of the GPU's memory that ran out.",
    "oom-fragmentation": "Enough GPU memory is free, but not in one piece.",
    "pcie-degraded": "A device's connection to the host has errors or runs below its rated speed.",
    "topology-slow": "GPUs communicate over a slower path than the machine has.",
}
GROUP = re.compile(r"\{([a-z_]\w*)\}")
"""Where a signature's text names a group of its pattern."""
FAMILIES = (
    (re.compile(r"failed-"), "failed"),
    (re.compile(r"hang-"), "hang"),
    (re.compile(r"oom-|shm-|memory-|leak-"), "memory"),
    (re.compile(r"gpu-|nvlink-|pcie-|topology-|numa-"), "hardware"),
    (re.compile(r"loss-|data-|replicas-|batch-|lr-|seed-"), "training"),
)


def family_of(code: str) -> str:
    """The catalogue's family of a code; `slow` if no prefix matches."""
    return next((family for form, family in FAMILIES if form.match(code)), "slow")


def summary_of(code: str, signatures: Sequence[Signature]) -> str:
    """What is wrong, in one sentence."""
    return SUMMARIES.get(code) or general(signatures[0].meaning)


def general(text: str) -> str:
    """A signature's text without the values that its groups capture."""
    return GROUP.sub("…", text)
