"""What the user names on the command line: a model of theirs, a built-in one, or a trainer."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_trainers import catalogue

from mgpu_doctor.analysis.memory.memory_plan import Strategy


class SubjectError(ValueError):
    """Nothing that can be planned; the message is one clear sentence."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`target`: the function that describes the step; `strategy`: None where it is not said;
    `batch`: samples where nothing else is asked for."""

    name: str
    target: str
    strategy: Strategy | None = None
    batch: int = 1


BATCH = {"gpt-nano": 4, "cnn-nano": 32, "gpt2-small": 4, "resnet50": 32}
"""The built-in models, with the samples that are usual."""

IN_KERAS = ("gpt-nano", "cnn-nano", "resnet50")
"""Those that trainers of TensorFlow can be planned with."""

STRATEGIES = {
    "torch-single": Strategy.SINGLE,
    "torch-ddp": Strategy.DDP,
    "torch-localsgd": Strategy.DDP,
    "torch-zero1": Strategy.ZERO1,
    "torch-fsdp": Strategy.FSDP,
    "tf-single": Strategy.SINGLE,
    "tf-mirrored": Strategy.MIRRORED,
    "tf-multiworker": Strategy.MIRRORED,
}
"""What a trainer does, as far as memory depends on it."""

ELSEWHERE = {
    "tf-ps": "it computes on CPUs alone, so no GPU's memory limits it; tf-single plans its models",
    "tf-tpu": "TPUs lay out memory by themselves; tf-single plans its models on a GPU",
}
"""Trainers of which no GPU's memory can be told: why, and what to plan in their place."""


def find_subject(name: str, model: str | None) -> Subject:
    """Raises SubjectError for what cannot be planned."""
    if model is not None and model not in BATCH:
        raise SubjectError(f"--model must be one of {', '.join(BATCH)}, not {model}.")
    if name in BATCH:
        if model is not None:
            raise SubjectError(f"--model chooses the model of a trainer, and {name} is one itself.")
        return _built_in(name, name, None)
    if name in {trainer.name for trainer in catalogue.TRAINERS}:
        if name in ELSEWHERE:
            raise SubjectError(f"{name} cannot be planned: {ELSEWHERE[name]}.")
        if name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise SubjectError(f"{name} cannot be planned yet; these can: {known}.")
        return _built_in(name, model or "gpt-nano", STRATEGIES[name])
    if model is not None:
        raise SubjectError(f"--model chooses the model of a built-in trainer, not of {name}.")
    if ":" in name or name.endswith(".py"):
        return Subject(name, name)
    raise SubjectError(
        f"{name!r} is no trainer and no model ({', '.join(BATCH)}): name your own as "
        "module:function or script.py:function."
    )


def _built_in(name: str, model: str, strategy: Strategy | None) -> Subject:
    module = "mgpu_trainers.planned"
    if name.startswith("tf-"):
        module = "mgpu_trainers.tensorflow.planned"
        if model not in IN_KERAS:
            raise SubjectError(f"{name} has no {model}, but {', '.join(IN_KERAS)}.")
    return Subject(name, f"{module}:{model.replace('-', '_')}", strategy, BATCH[model])
