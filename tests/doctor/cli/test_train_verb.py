"""The verb `train`: what it lists, rejects and starts."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner
from mgpu_trainers import catalogue

from mgpu_doctor.cli import app, train
from mgpu_doctor.cli.terminal_output import WRONG_USAGE


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["train", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been run; nothing is."""
    calls: list[dict[str, Any]] = []

    def remember(command: list[str], **more: Any) -> None:
        calls.append({"command": command, **more})

    monkeypatch.setattr(train, "run_observed", remember)
    return calls


def test_the_list_shows_every_trainer_with_its_options_and_faults() -> None:
    code, listing, _ = invoke("--list")
    assert code == 0
    for trainer in catalogue.TRAINERS:
        assert trainer.name in listing
        for option in trainer.options:
            assert f"--{option.name}" in listing
    assert "hang" in listing


def test_the_help_of_a_trainer_tells_its_own_options() -> None:
    code, told, _ = invoke("torch-pp", "--help")
    assert code == 0
    for option in catalogue.find("torch-pp").options:
        assert f"--{option.name} " in told
    assert "--ranks" in told
    assert "--compress" not in told
    assert "--ranks" not in invoke("torch-mp", "--help")[1].partition("Faults")[0]
    assert invoke("nobody", "--help")[1] == invoke("--help")[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--list"),
        (("nobody",), "torch-ddp"),
        (("--steps", "3", "torch-ddp"), "comes first"),
        (("torch-ddp", "--absent", "3"), "--absent"),
        (("torch-ddp", "--steps"), "needs a value"),
        (("torch-ddp", "--steps", "--lr"), "needs a value"),
        (("torch-ddp", "--steps", "x"), "whole number"),
        (("torch-ddp", "stray"), "stray"),
        (("torch-single", "--ranks", "2"), "torch-single is one process"),
        (("torch-ddp", "--ranks", "2", "--fault", "hang:rank=9"), "rank 9"),
    ],
)
def test_wrong_usage_is_one_sentence(
    started: list[dict[str, Any]], arguments: tuple[str, ...], expected: str
) -> None:
    code, output, error = invoke(*arguments)
    assert (code, output) == (WRONG_USAGE, "")
    assert expected in error
    assert error.count("\n") == 1
    assert not started


def test_options_reach_the_trainer(started: list[dict[str, Any]]) -> None:
    code, _, error = invoke(
        *("torch-ddp", "--ranks", "3", "--steps=7", "--fault", "hang:rank=1"),
        *("--fault", "leak:rank=0,mb=1", "--quiet"),
    )
    assert (code, error) == (0, "")
    (call,) = started
    faults = {"steps": ["7"], "fault": ["hang:rank=1", "leak:rank=0,mb=1"]}
    assert call["command"] == catalogue.command(catalogue.find("torch-ddp"), 3, faults)
    assert (call["kind"], call["name"], call["quiet"]) == ("train", "torch-ddp", True)


def test_without_the_framework_it_says_what_to_install(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", dict[str, object]().get)
    code, _, error = invoke("torch-ddp")
    assert code == WRONG_USAGE
    assert "pip install 'mgpu-doctor[torch]'" in error
    assert not started
