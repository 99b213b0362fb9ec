"""Finds the model that the user names: their own, a built-in one, or a trainer's."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_trainers import catalogue
from mgpu_trainers.catalogue import Framework, Trainer

from mgpu_doctor.analysis.memory.memory_plan import Strategy
from mgpu_doctor.formatting import suggest


class SubjectError(ValueError):
    """The name is nothing that can be planned; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to plan.

    `target`: the function that returns model, batch and loss; `strategy`: None unless a trainer
    was named; `batch`: samples per rank unless the user asks for others.
    """

    name: str
    target: str
    strategy: Strategy | None = None
    batch: int = 1


BATCH = {"gpt-nano": 4, "cnn-nano": 32, "gpt2-small": 4, "resnet50": 32}
"""The built-in models, with the usual samples per rank."""

IN_KERAS = ("gpt-nano", "cnn-nano", "resnet50")
"""The built-in models that TensorFlow trainers have."""

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
"""How each trainer divides the model's memory among ranks."""

ELSEWHERE = {
    "tf-ps": "it runs on CPUs only, so no GPU memory limits it; tf-single plans its models",
    "tf-tpu": "TPUs manage memory themselves; tf-single plans its models on a GPU",
}
"""Trainers whose GPU memory cannot be predicted: why, and what to plan instead."""


def find_subject(name: str, model: str | None) -> Subject:
    """Returns the model that a trainer, a built-in model or a target names, and its strategy.

    Raises SubjectError if the name is none of these or cannot be planned.
    """
    if model is not None and model not in BATCH:
        hint = suggest(model, BATCH)
        raise SubjectError(
            f"--model must be one of {', '.join(BATCH)}, not {model}. {hint}".strip()
        )
    if name in BATCH:
        if model is not None:
            raise SubjectError(f"--model chooses the model of a trainer, and {name} is one itself.")
        return _find_built_in(name, None)
    trainer = next((each for each in catalogue.TRAINERS if each.name == name), None)
    if trainer is not None:
        if name in ELSEWHERE:
            raise SubjectError(f"{name} cannot be planned: {ELSEWHERE[name]}.")
        if name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise SubjectError(f"{name} cannot be planned yet; these can: {known}.")
        return _find_built_in(model or "gpt-nano", trainer)
    if model is not None:
        raise SubjectError(f"--model chooses the model of a built-in trainer, not of {name}.")
    if ":" in name or name.endswith(".py"):
        return Subject(name, name)
    if hint := suggest(name, [*BATCH, *STRATEGIES]):
        raise SubjectError(f"{name!r} is not a trainer or a model. {hint}")
    raise SubjectError(
        f"{name!r} is not a trainer or a model ({', '.join(BATCH)}): name your own as "
        "module:function or script.py:function."
    )


def _find_built_in(model: str, trainer: Trainer | None) -> Subject:
    name = trainer.name if trainer else model
    strategy = STRATEGIES[trainer.name] if trainer else None
    module = "mgpu_trainers.pytorch.torch_plan_models"
    if trainer is not None and trainer.framework is Framework.TENSORFLOW:
        module = "mgpu_trainers.tensorflow.tf_plan_models"
        if model not in IN_KERAS:
            raise SubjectError(f"{name} has no {model}, but {', '.join(IN_KERAS)}.")
    return Subject(name, f"{module}:{model.replace('-', '_')}", strategy, BATCH[model])
