"""The verb `plan`: what it rejects and prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mgpu_doctor.cli import app, plan
from tests.support.in_process_tracing import trace_here


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet", "--gpu", "A100"), "is not a trainer or a model"),
        (("resnet50", "--gpu", "C64"), "--gpu must be a size"),
        (("resnet50", "--precision", "fp8"), "--precision must be one of fp32, bf16"),
        (("resnet50", "--checkpointing", "some"), "--checkpointing must be one of"),
        (("resnet50", "--optimizer", "lion"), "--optimizer must be one of"),
        (("resnet50", "--strategy", "hope"), "--strategy must be one of"),
        (("torch-ddp", "--strategy", "fsdp"), "remove --strategy"),
        (("resnet50", "--batch", "0"), "--batch"),
        (("torch-single", "--ranks", "2"), "--ranks can only be 1"),
        (("torch-pp",), "cannot be planned yet"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(arguments: tuple[str, ...], message: str) -> None:
    code, printed, error = invoke(*arguments)
    assert code == 2
    assert not printed
    assert message in error


@pytest.mark.slow
def test_what_fits_is_reported_with_its_parts_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    trace_here(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    command = ("torch-ddp", "--model", "cnn-nano", "--batch", "64", "--gpu", "4GiB")
    code, printed, error = invoke(*command)
    assert (code, error) == (0, "")
    for words in ("fits 4GiB", "peak allocated", "W weights", "D buckets", "largest batch", "fake"):
        assert words in printed
    assert "What would help" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    code, printed, _ = invoke(*command, "--json", "--fixes")
    document = json.loads(printed)
    assert (code, document["schema"], document["fits"]) == (0, "mgpu-doctor/plan/1", True)
    made = document["prediction"]
    assert sum(made["peak_by_kind"].values()) == made["peak_allocated"]
    assert made["peak_allocated"] <= made["smallest_capacity"] <= made["peak_reserved"]
    assert document["largest_batch"] > 64
    assert document["plan"]["ranks"] == 2
    assert {each["id"] for each in (*document["fixes"], *document["not_offered"])} >= {
        "bf16",
        "sgd",
    }


@pytest.mark.slow
def test_what_will_not_fit_exits_with_1_and_says_what_would_help(tmp_path: Path) -> None:
    script = tmp_path / "its_model.py"
    script.write_text(
        "import torch\n"
        "def plan():\n"
        "    print('this must not stand in the answer')\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU())\n"
        "    batch = lambda samples: torch.randn(samples, 4096)\n"
        "    return model, batch, lambda model, batch: model(batch).sum()\n",
        encoding="utf-8",
    )
    code, printed, _ = invoke(str(script), "--batch", "65536", "--gpu", "4GiB")
    assert code == plan.WILL_NOT_FIT == 1
    assert "will not fit 4GiB" in printed
    assert "Smaller batches" in printed
    assert "must not stand" not in printed


def test_what_cannot_be_examined_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    trace_here(monkeypatch)
    code, printed, error = invoke("its_script.py")
    assert (code, printed) == (3, "")
    assert error.startswith("mgpu-doctor: there is no file its_script.py")
    assert len(error.splitlines()) == 1
