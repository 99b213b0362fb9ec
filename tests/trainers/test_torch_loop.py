"""A single process: it resumes from what it saved."""

from pathlib import Path

import pytest
import torch
from mgpu_trainers import catalogue
from mgpu_trainers.pytorch.common import torch_loop
from mgpu_trainers.pytorch.common.process_group import Place
from mgpu_trainers.pytorch.mp import Mp
from mgpu_trainers.pytorch.single import Single

pytestmark = pytest.mark.slow


def train(*options: str, kind: type[Single] = Single) -> None:
    given = ["--model", "cnn-nano", "--batch", "8", "--log-every", "1", *options]
    args = catalogue.arguments(catalogue.find(kind.name), given)
    place = Place(0, 1, torch.device("cpu"))
    torch_loop.train(kind(args, place), args, place)


def losses(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith(("step", "validation"))]


def test_a_run_goes_on_as_if_it_had_not_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = ("--accumulate", "2", "--save-to", str(tmp_path))
    train("--accumulate", "2", "--steps", "4")
    whole = losses(capsys.readouterr().out)
    train(*saved, "--steps", "2", "--save-every", "2")
    first = losses(capsys.readouterr().out)[:2]
    train(*saved, "--steps", "4")
    told = capsys.readouterr().out
    assert told.startswith("resumed after step 2\n")
    assert first + losses(told) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"weights": 3}, "cannot be resumed from (KeyError); move it away"),
        ({"model": "gpt-nano"}, "checkpoint.pt is of gpt-nano, not of cnn-nano"),
    ],
)
def test_what_cannot_be_resumed_from_is_reported_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: dict[str, object], why: str
) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(SystemExit) as ended:
        train("--steps", "1", "--save-to", str(tmp_path))
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert why in told[0]


def test_activations_that_are_computed_again_change_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for kept in ("none", "full", "selective"):
        train("--steps", "2", "--checkpointing", kept)
    told = losses(capsys.readouterr().out)
    assert told[:2] == told[3:5] == told[6:8]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_shorter_precision_learns_alike(
    capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    losses_of = []
    for each in ("fp32", precision):
        train("--steps", "3", "--precision", each)
        losses_of.append([float(line.split()[3]) for line in losses(capsys.readouterr().out)[:3]])
    assert losses_of[0] != losses_of[1]
    assert losses_of[0] == pytest.approx(losses_of[1], abs=0.1)


def test_stages_on_one_device_say_so_and_compute_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train("--steps", "2")
    train("--steps", "2", "--stages", "3", kind=Mp)
    told = capsys.readouterr()
    assert losses(told.out)[:3] == losses(told.out)[3:]
    assert told.err.startswith("torch-mp: all 3 stages are on the CPU")
