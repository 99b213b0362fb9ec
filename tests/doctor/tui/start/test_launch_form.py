"""The launch form's fields as a command, or as a message about what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from mgpu_trainers import catalogue

from mgpu_doctor.tui.jobs.launch_screen import Filled, Ready, Refused, check, fault_text
from mgpu_doctor.tui.jobs.starting import shown

NAME = "torch-ddp"


def filled(**changes: Any) -> Filled:
    return Filled(NAME, **changes)


@pytest.mark.parametrize(
    ("form", "command"),
    [
        (filled(), "mgpu-doctor train torch-ddp"),
        (
            filled(ranks=" 4 ", options={"steps": "60", "model": "cnn-nano", "seed": ""}),
            "mgpu-doctor train torch-ddp --ranks 4 --steps 60 --model cnn-nano",
        ),
        (
            filled(ranks="4", faults=("slow:rank=2,ms=20", "kill:step=9"), directory="my runs/x"),
            "mgpu-doctor train torch-ddp --ranks 4 --fault slow:rank=2,ms=20 --fault kill:step=9 "
            "--dir 'my runs/x'",
        ),
        (Filled("torch-single"), "mgpu-doctor train torch-single"),
        (
            filled(options={"save-every": "5", "save-to": "x"}),
            "mgpu-doctor train torch-ddp --save-every 5 --save-to x",
        ),
    ],
    ids=["defaults", "options", "faults and folder", "one process", "options that need each other"],
)
def test_what_is_typed_is_a_command(form: Filled, command: str) -> None:
    ready = check(form)
    assert isinstance(ready, Ready)
    assert shown(ready.words) == command


@pytest.mark.parametrize(
    ("form", "place", "sentence"),
    [
        (Filled("nope"), "trainer", "there is no trainer 'nope': choose one of "),
        (filled(ranks="two"), "ranks", "--ranks takes a whole number, not 'two'."),
        (filled(ranks="0"), "ranks", "--ranks must be 1 to 1024, not 0."),
        (filled(ranks="99999"), "ranks", "--ranks must be 1 to 1024, not 99999."),
        (filled(options={"steps": "-3"}), "steps", "--steps must be 1 or more, not -3."),
        (filled(options={"lr": "x"}), "lr", "--lr takes a number, not 'x'."),
        (filled(options={"model": "x"}), "model", "--model must be one of gpt-nano, cnn-nano"),
        (filled(options={"nope": "1"}), "nope", "torch-ddp has no option --nope."),
        (filled(faults=("slow",)), "fault", "slow takes either ms= or factor="),
        (filled(faults=("slow:ms=x",)), "fault", "position 9: ms must be a number such as"),
        (filled(faults=("kill:rank=2",)), "fault", "there is no rank 2 among 2"),
        (filled(options={"save-every": "5"}), "save-every", "needs a folder: --save-to FOLDER"),
        (Filled("torch-single", ranks="2"), "ranks", "torch-single is one process"),
    ],
    ids=lambda value: None if isinstance(value, Filled) else value[:24],
)
def test_what_is_wrong_is_reported_in_the_words_of_the_catalogue(
    form: Filled, place: str, sentence: str
) -> None:
    refused = check(form)
    assert isinstance(refused, Refused)
    assert refused.place == place
    assert sentence in refused.sentence
    assert refused.sentence.endswith(".")


def test_a_fault_is_spelled_from_the_keys_that_are_given() -> None:
    assert fault_text("slow", {"rank": "2", "ms": " 20 ", "phase": ""}) == "slow:rank=2,ms=20"
    assert fault_text("nan", {"rank": "", "step": ""}) == "nan"


@pytest.mark.parametrize("kind", catalogue.fault_keys())
def test_the_defaults_that_are_shown_are_what_the_parser_takes(kind: str) -> None:
    defaults = catalogue.fault_defaults(kind)
    assert tuple(defaults) == catalogue.fault_keys()[kind]
    needed = {"ms": "20"} if "ms" in defaults and not defaults["ms"] else {}
    given = {key: value for key, value in (defaults | needed).items() if value}
    trainer = "torch-pp" if kind == "heavy-stage" else NAME
    assert isinstance(check(Filled(trainer, faults=(fault_text(kind, given),))), Ready)
