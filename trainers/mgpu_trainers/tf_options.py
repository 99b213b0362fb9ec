"""The options of TensorFlow's trainers, where they are not everybody's. Imports no framework."""

from mgpu_trainers.options import PRACTICES, TIMEOUT, TRAINING, Option

_EVERYBODYS = {option.name: option for option in (*TRAINING, *PRACTICES)}


def _some(*names: str) -> tuple[Option, ...]:
    return tuple(_EVERYBODYS[name] for name in names)


WORKERS = Option(
    "workers", int, 0, "threads that make several batches at once, in tf.data", most=1024
)
REPLICAS = Option(
    "replicas", int, 2, "devices that one process trains on together", least=1, most=64
)
API = Option(
    "api", str, "loop", "a loop of our own, or model.fit of Keras 3", choices=("loop", "fit")
)
SERVERS = Option("servers", int, 1, "parameter servers, which hold the weights", least=1, most=64)
TPU = Option("tpu", str, "local", "name or address of the TPU; local: of this machine")
FOUND_IN = Option("timeout", float, 60.0, "seconds in which the TPU must be found", least=1)

PLAIN = (
    *_some("steps", "model", "batch"),
    WORKERS,
    *_some("cache", "seed", "lr", "lr-scaling", "warmup", "precision", "log-every", "fault"),
    *_some("save-every", "save-to"),
)
TOGETHER = (*PLAIN, *_some("global-batch", "accumulate", "threads", "device"))
SINGLE = (*TOGETHER, API)
MIRRORED = (*TOGETHER, API, REPLICAS)
MULTIWORKER = (*TOGETHER, TIMEOUT)
PS = (*PLAIN, *_some("threads"), SERVERS)
ON_TPU = (*PLAIN, *_some("accumulate"), TPU, FOUND_IN)
