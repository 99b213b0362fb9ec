"""Healthy jobs of `benchmarks.blame`: different loops, frameworks, sizes and habits. Whatever the
doctor says about them at warning or worse is a false alarm."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.trials import Launcher, Trial

PLAIN, ALONE, TRAINER = Launcher.PLAIN, Launcher.SCRIPT, Launcher.TRAINER


def healthy(steps: int) -> Iterator[Trial]:
    """Jobs of different character with nothing wrong."""
    yield from _loops(("--steps", str(steps)))
    yield from _habits(("--steps", str(steps)))
    yield from _frameworks()
    yield from _trainers()


def _loops(some: tuple[str, ...]) -> Iterator[Trial]:
    """Loops and divisions of the model."""
    yield Trial("short", "plain_ddp", 2, ("--steps", "12"))
    yield Trial("one rank", "no_loader", 1, some)
    yield Trial("convolutions", "plain_ddp", 2, (*some, "--model", "cnn"))
    yield Trial("convolutions, four ranks", "plain_ddp", 4, (*some, "--model", "cnn"))
    yield Trial("three ranks", "plain_ddp", 3, some, launcher=PLAIN)
    stay = ("--model", "cnn", "--workers", "1", "--persistent")
    yield Trial("loader workers", "plain_ddp", 1, (*some, *stay))
    yield Trial("small batches", "plain_ddp", 2, (*some, "--batch", "8"))
    yield Trial("two optimizers", "two_optimizers", 2, some)
    yield Trial("skipped updates", "scaler_skip", 2, some)
    yield Trial("optimizer in backward", "optimizer_in_backward", 2, some)
    yield Trial("prefetch ahead", "prefetch_ahead", 2, some)
    yield Trial("compiled", "compiled", 2, some)
    yield Trial("pipeline", "pipeline_sendrecv", 2, some)
    yield Trial("equal stages", "pipeline_1f1b", 2, ("--steps", "60"))
    parallel = ("--steps", "60", "--replicas", "2")
    yield Trial("two pipelines", "pipeline_1f1b", 4, parallel, launcher=PLAIN)
    yield Trial("tensor parallel", "tensor_parallel", 2, some)
    yield Trial("hybrid", "hybrid", 4, some)
    yield Trial("spawned", "spawn_ddp", 2, some, launcher=ALONE)
    yield Trial("forked", "fork_ddp", 2, some, launcher=ALONE)
    yield Trial("gradients by hand", "manual_allreduce", 3, some, launcher=PLAIN)
    yield Trial("gradients only", "diverging_replicas", 2, some, launcher=PLAIN)
    yield Trial("sharded", "fsdp2", 2, some, launcher=PLAIN)
    yield Trial("experts", "expert_parallel", 2, some, launcher=PLAIN)
    yield Trial("two loaders", "two_loaders", 2, some, launcher=PLAIN)
    yield Trial("a trainer class", "lightning_like", 2, some, launcher=PLAIN)


def _habits(some: tuple[str, ...]) -> Iterator[Trial]:
    """What scripts do besides training: evaluate, save, log, accumulate, run out of data."""
    yield Trial("validation between epochs", "validation_between", 2, some)
    together = ("--stall", "evaluation", "--who", "-1")
    yield Trial("evaluation on all ranks", "stalls", 2, together)
    yield Trial("evaluation on three ranks", "stalls", 3, together, launcher=PLAIN)
    cheap = ("--stall", "checkpoint", "--who", "0", "--ms", "1", "--every", "50", *some)
    yield Trial("cheap checkpoints", "stalls", 2, cheap, launcher=PLAIN)
    short = ("--stall", "log", "--who", "0", "--ms", "1", "--every", "50", *some)
    yield Trial("cheap logs", "stalls", 2, short, launcher=PLAIN)
    once = ("--stall", "evaluation", "--who", "-1", "--every", "120", "--once")
    yield Trial("evaluation near the end", "stalls", 2, once, launcher=PLAIN)
    deferred = ("--steps", "60", "--accumulate", "4", "--no-sync")
    yield Trial("accumulation in no_sync", "ddp_settings", 2, deferred)
    yield Trial("accumulation", "accumulate", 2, ("--steps", "60"), launcher=PLAIN)
    yield Trial("one length of sentences", "uneven_batches", 2, launcher=PLAIN)
    yield Trial("a layer skipped now and then", "ddp_settings", 2,
                ("--steps", "80", "--find-unused", "--spare", "4"), launcher=PLAIN)  # fmt: skip
    once_compiled = ("--steps", "100", "--every", "40")
    yield Trial("compiled for three sizes", "recompiles", 2, once_compiled, launcher=PLAIN)
    yield Trial("a sampler for each rank", "data_sharding", 2, launcher=PLAIN)
    yield Trial("many short steps", "no_loader", 2, ("--steps", "600"), launcher=PLAIN)


def _frameworks() -> Iterator[Trial]:
    """Loops that a framework owns."""
    few = ("--steps", "60")
    yield Trial("Lightning", "lightning_fit", 2, (*few, "--validate"), launcher=PLAIN)
    yield Trial("Accelerate", "accelerate_loop", 2, (*few, "--accumulate", "2"), launcher=PLAIN)
    yield Trial("Keras", "keras_fit", 1, (*few, "--validate", "--epochs", "3"), launcher=ALONE)
    yield Trial("Keras, two replicas", "keras_fit", 1, (*few, "--replicas", "2"), launcher=ALONE)
    yield Trial("TensorFlow", "tf_loop", 1, (*few, "--plain"), launcher=ALONE)
    yield Trial("TensorFlow workers", "tf_loop", 2, few, launcher=Launcher.WORKERS)


def _trainers() -> Iterator[Trial]:
    """The built-in trainers."""
    for name, ranks in (
        ("torch-ddp", 2),
        ("torch-ddp", 4),
        ("torch-fsdp", 2),
        ("torch-zero1", 2),
        ("torch-localsgd", 2),
        ("torch-diloco", 2),
        ("torch-ps", 3),
        ("torch-tp", 2),
        ("torch-pp", 2),
    ):
        options = ("model", "cnn-nano", "device", "cpu", "steps", "60")
        model = ("model", "gpt-nano", *options[2:]) if "tp" in name or "pp" in name else options
        yield Trial(f"{name}, {ranks} ranks", name, ranks, model, launcher=TRAINER)
