"""How the user names a model: what is found, and the message if it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mgpu_doctor.analysis.memory.memory_plan import Framework, Strategy
from mgpu_doctor.plan.subject import SubjectError, find_subject
from mgpu_doctor.plan.tracing.user_function import TargetError, detect_framework, find_function

IN_TORCH = "mgpu_trainers.pytorch.torch_plan_models"
IN_KERAS = "mgpu_trainers.tensorflow.tf_plan_models"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`find_function` is for a process of its own: it changes this one's.

    Only scripts are forgotten afterwards: parts of torch cannot be imported a second time."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def _script(folder: Path, text: str) -> str:
    path = folder / "its_own_script.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_function_of_a_script_is_found_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("ANSWER = 42\n", encoding="utf-8")
    text = "from beside_the_script import ANSWER\ndef plan():\n    return ANSWER\n"
    script = _script(tmp_path, text)
    assert find_function(script)() == 42
    assert find_function(f"{script}:plan")() == 42


@pytest.mark.slow  # it loads torch
def test_a_function_of_a_module_is_found() -> None:
    assert find_function(f"{IN_TORCH}:cnn_nano").__name__ == "cnn_nano"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('d')\np.parse_args()",
            "2",
        ),
        ("open('no-such-data')", "FileNotFoundError"),
        ("def (", "SyntaxError"),
        ("def plan(batch): ...", "takes arguments"),
        ("def other(): ...", "no function 'plan'"),
        ("plan = 3", "no function 'plan'"),
    ],
)
def test_what_cannot_be_used_is_reported_with_what_to_do(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(TargetError) as caught:
        find_function(_script(tmp_path, text))
    assert message in str(caught.value)
    assert "docs/plan.md" in str(caught.value)


@pytest.mark.slow  # it loads torch
def test_a_script_that_starts_a_process_group_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from mgpu_doctor.plan.tracing.torch_step import refuse_groups

    monkeypatch.setattr(torch.distributed, "init_process_group", None)
    refuse_groups()
    script = _script(tmp_path, "import torch.distributed as d\nd.init_process_group('gloo')")
    with pytest.raises(TargetError, match="starts a process group"):
        find_function(script)


@pytest.mark.parametrize("target", ["no_such_module_of_mine:plan", "no/such/file.py"])
def test_what_is_not_there_is_reported(target: str) -> None:
    with pytest.raises(TargetError, match=r"no module no_such_module_of_mine|there is no file"):
        find_function(target)


def test_a_package_that_is_missing_is_to_be_installed(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="imports no_such_package, which is missing: install it"):
        find_function(_script(tmp_path, "import no_such_package.models"))


def test_a_trainer_says_what_is_trained_and_how() -> None:
    named = find_subject("torch-zero1", "cnn-nano")
    assert (named.target, named.strategy) == (
        f"{IN_TORCH}:cnn_nano",
        Strategy.ZERO1,
    )
    assert find_subject("torch-ddp", None).target == f"{IN_TORCH}:gpt_nano"
    assert find_subject("torch-ddp", "gpt2-small").target == f"{IN_TORCH}:gpt2_small"


def test_the_trainers_of_tensorflow_have_models_of_keras() -> None:
    named = find_subject("tf-multiworker", "resnet50")
    assert named.target == f"{IN_KERAS}:resnet50"
    assert named.strategy is Strategy.MIRRORED
    assert find_subject("tf-single", None).strategy is Strategy.SINGLE
    with pytest.raises(SubjectError, match="tf-mirrored has no gpt2-small"):
        find_subject("tf-mirrored", "gpt2-small")


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("import tensorflow as tf\n", Framework.TENSORFLOW),
        ("def plan():\n    from keras import layers\n", Framework.TENSORFLOW),
        ("import keras\nimport torch.nn\n", Framework.TORCH),
        ("# import keras\nimport keras_of_mine\n", Framework.TORCH),
    ],
)
def test_a_script_is_about_what_it_imports(tmp_path: Path, text: str, about: Framework) -> None:
    assert detect_framework(f"{_script(tmp_path, text)}:plan") is about


def test_so_is_a_module_and_what_is_not_there_is_torchs() -> None:
    assert detect_framework(f"{IN_KERAS}:cnn_nano") is Framework.TENSORFLOW
    assert detect_framework(IN_TORCH) is Framework.TORCH
    assert (
        detect_framework("no_such.module_of_mine:plan")
        is detect_framework("no.py")
        is Framework.TORCH
    )


def test_a_model_or_a_function_leaves_the_strategy_open() -> None:
    assert find_subject("resnet50", None).strategy is None
    assert find_subject("mine.models:plan", None).target == "mine.models:plan"
    assert find_subject("train.py", None).target == "train.py"


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("torch-pp", None, "cannot be planned yet"),
        ("tf-ps", None, "on CPUs only, .*; tf-single plans its models"),
        ("torch-ddp", "gpt-5", "--model must be one of"),
        ("resnet50", "gpt-nano", "is one itself"),
        ("mine:plan", "gpt-nano", "built-in trainer"),
        ("torch_ddp", None, "Did you mean torch-ddp"),
        ("mine", None, "module:function"),
    ],
)
def test_what_names_nothing_is_refused(name: str, model: str | None, message: str) -> None:
    with pytest.raises(SubjectError, match=message):
        find_subject(name, model)


def test_nothing_is_imported_to_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine_for_plans"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model.py").write_text("import keras\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert detect_framework("mine_for_plans.model:plan") is Framework.TENSORFLOW
    assert detect_framework("mine_for_plans.model.deeper:plan") is Framework.TORCH
