"""What a shell offers for the values of arguments and options: codes, trainers, models, GPUs,
recordings and files. Each imports what it lists only when a shell asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
MOST_RECORDINGS = 50
"""Newest recordings that are offered."""


def _offer(list_names: Callable[[], Iterable[tuple[str, str | None]]], *, files: bool) -> Completer:
    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        items = [
            CompletionItem(name, help=about)
            for name, about in list_names()
            if name.startswith(incomplete)
        ]
        if files:
            items.append(CompletionItem(incomplete, type="file"))
        return items

    return complete


def _list_codes() -> Iterable[tuple[str, str]]:
    from mgpu_doctor.rules.catalogue import catalogue

    return [(rule.code, rule.summary) for rule in catalogue().rules]


def _list_recordings() -> Iterable[tuple[str, str | None]]:
    import os

    from mgpu_doctor.recording.home import LATEST, runs

    try:
        names = sorted(os.listdir(runs()), reverse=True)[:MOST_RECORDINGS]
    except OSError:
        names = []
    newest = [(LATEST, "the newest recording")] if names else []
    return [*newest, *((name, None) for name in names)]


def _list_trainers() -> Iterable[tuple[str, str]]:
    from mgpu_trainers.catalogue import TRAINERS

    return [(trainer.name, trainer.summary) for trainer in TRAINERS]


def _list_models() -> Iterable[tuple[str, None]]:
    from mgpu_doctor.plan.subject import BATCH

    return [(name, None) for name in BATCH]


def _list_planned() -> Iterable[tuple[str, str | None]]:
    return [*_list_models(), *_list_trainers()]


def _list_gpus() -> Iterable[tuple[str, None]]:
    from mgpu_doctor.analysis.memory.device_memory import GPUS

    return [(name, None) for name in GPUS]


def _list_treatments() -> Iterable[tuple[str, None]]:
    from mgpu_doctor.advice.treatment_catalogue import TREATMENTS

    return [(name, None) for name in TREATMENTS]


complete_code = _offer(_list_codes, files=False)
complete_recording = _offer(_list_recordings, files=True)
complete_trainer = _offer(_list_trainers, files=False)
complete_model = _offer(_list_models, files=False)
complete_planned = _offer(_list_planned, files=True)
complete_gpu = _offer(_list_gpus, files=False)
complete_treatment = _offer(_list_treatments, files=False)
complete_file = _offer(tuple, files=True)


def offer(*names: str) -> Completer:
    """A completer of these names."""
    return _offer(lambda: [(name, None) for name in names], files=False)


def complete_trainer_option(words: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """The options of the trainer `words[0]`, or the values of the option that is the last of
    `words`; faults with their keys."""
    from mgpu_trainers.catalogue import TRAINERS, fault_keys

    trainer = next((each for each in TRAINERS if words and each.name == words[0]), None)
    if trainer is None:
        return []
    last = words[-1].removeprefix("--")
    if words[-1] == "--fault" and not incomplete.startswith("-"):
        names = [(f"{kind}:", ", ".join(keys)) for kind, keys in fault_keys().items()]
        return [
            CompletionItem(name, help=keys) for name, keys in names if name.startswith(incomplete)
        ]
    if words[-1].startswith("--") and not incomplete.startswith("-"):
        choices = next((each.choices for each in trainer.options if each.name == last), ())
        return [
            CompletionItem(str(choice)) for choice in choices if str(choice).startswith(incomplete)
        ]
    options = [(f"--{each.name}", each.help) for each in trainer.options]
    return [
        CompletionItem(name, help=help) for name, help in options if name.startswith(incomplete)
    ]
