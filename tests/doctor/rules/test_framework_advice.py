"""Fixes for users of TensorFlow and of DeepSpeed."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor import rules
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Finding, Fix, Predicted, Severity
from mgpu_doctor.rules.framework_advice import (
    IN_DEEPSPEED,
    IN_TENSORFLOW,
    ONLY_IN_TORCH,
    TENSORFLOW_FRAMEWORKS,
    advise,
)
from tests.support.synthetic import make_case, make_rank

LOADER = Fix("load-in-background", "Let batches be made ahead", "DataLoader(..., num_workers=4)")
ACCUMULATE = Fix("accumulate", "Add up gradients", "model.no_sync()", Predicted(0.8, None, "why"))
OVERLAP = Fix("use-ddp", "Let gradients move while backward computes", "Wrap the model")
MEMORY = Fix("more-memory", "Give the job more memory", "A machine with more memory.")
NAMES_OF_TORCH = re.compile(
    r"torch|DataLoader|DistributedSampler|DistributedDataParallel|no_sync|num_workers"
    r"|OMP_NUM_THREADS|\bdist\.|autograd|\bdcp\."
)
SAME_EVERYWHERE = {
    "bind-cores": "torchrun is one of several launchers",
    "keep-running": "torchrun's own way, only if it started the job",
    "more-cores": "torchrun's option, beside others",
    "move-rank": "torchrun is one of several launchers",
}
"""Fixes that name something of torch's and say the same in every framework, with the reason."""


def job(framework: str | None, strategy: str | None = None, **metadata: Any) -> Case:
    case = make_case([make_rank(0, [], birth=metadata)])
    return replace(case, job=replace(case.job, framework=framework, strategy=strategy))


def fixes(case: Case, *given: Fix) -> tuple[Fix, ...]:
    return advise(Finding("code", Severity.WARNING, 0.9, "title", "cause", fixes=given), case).fixes


@pytest.mark.parametrize("framework", ["torch", None])
@pytest.mark.parametrize("strategy", [None, "ddp", "not-deepspeed"])
def test_torch_keeps_its_words(framework: str | None, strategy: str | None) -> None:
    given = (LOADER, ACCUMULATE, OVERLAP, MEMORY)
    assert fixes(job(framework, strategy), *given) == given


@pytest.mark.parametrize("framework", TENSORFLOW_FRAMEWORKS)
def test_tensorflow_has_its_own_words_or_none(framework: str) -> None:
    loader, accumulate, memory = fixes(job(framework), LOADER, ACCUMULATE, OVERLAP, MEMORY)
    assert loader.summary == LOADER.summary
    assert "tf.data.AUTOTUNE" in loader.how
    assert accumulate.how == IN_TENSORFLOW["accumulate"]
    assert memory == MEMORY


@pytest.mark.parametrize(
    ("facts", "present", "absent"),
    [
        ({}, "It has no prefetch now", "num_parallel_calls"),
        ({"parallel_calls": 1}, "Its map makes one element at a time now", "already"),
        ({"prefetch": 2, "parallel_calls": 1}, "one element at a time", "no prefetch"),
        ({"prefetch": -1, "parallel_calls": 4}, "parallel calls already", "AUTOTUNE"),
        ({"prefetch": -1, "cached": True}, "Do less of it", ".cache()"),
        ({"prefetch": "x", "parallel_calls": [], "cached": 3}, "Do less of it", "now"),
    ],
)
def test_what_a_data_set_does_already_is_not_advised(
    facts: dict[str, Any], present: str, absent: str
) -> None:
    pipeline = {"operations": ["Batch"], "prefetch": 0, "parallel_calls": None, "cached": False}
    (fix,) = fixes(job("tensorflow", pipelines=[{**pipeline, **facts}]), LOADER)
    assert present in fix.how
    assert absent not in fix.how


@pytest.mark.parametrize("strategy", ["deepspeed", "deepspeed+zero3"])
def test_deepspeed_is_set_in_its_configuration(strategy: str) -> None:
    case = job("torch", strategy, device="cuda:0")
    case = replace(case, ranks=tuple(replace(rank, device="cuda:0") for rank in case.ranks))
    accumulate, overlap, memory = fixes(case, ACCUMULATE, OVERLAP, MEMORY)
    assert '"gradient_accumulation_steps": 4' in accumulate.how
    assert accumulate.predicted is None
    assert '"overlap_comm": true' in overlap.how
    assert memory == MEMORY


def test_what_needs_streams_is_not_advised_on_cpus() -> None:
    kept = fixes(job("torch", "deepspeed+zero2"), ACCUMULATE, OVERLAP, MEMORY)
    assert [fix.id for fix in kept] == ["accumulate", "more-memory"]


def test_settings_of_deepspeed_are_json() -> None:
    for how in IN_DEEPSPEED.values():
        settings = re.findall(r'"\w+": (?:\{.*?\}|[\w.]+)', how)
        assert settings
        for setting in settings:
            json.loads(f"{{{setting}}}")


def declared_fixes() -> dict[str, str]:
    """ID -> source of every fix that a rule makes."""
    found: dict[str, str] = {}
    for path in Path(rules.__path__[0]).rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Fix" and node.args:
                for name in ast.walk(node.args[0]):
                    if isinstance(name, ast.Constant) and isinstance(name.value, str):
                        text = ast.get_source_segment(source, node) or ""
                        found[name.value] = found.get(name.value, "") + text
    return found


def test_every_fix_is_decided_for_tensorflow() -> None:
    declared = declared_fixes()
    decided = {*IN_TENSORFLOW, *ONLY_IN_TORCH}
    assert not set(IN_TENSORFLOW) & ONLY_IN_TORCH
    assert decided | set(SAME_EVERYWHERE) | set(IN_DEEPSPEED) <= set(declared)
    named = {name for name, text in declared.items() if NAMES_OF_TORCH.search(text)}
    assert named - decided == set(SAME_EVERYWHERE)
    for how in IN_TENSORFLOW.values():
        assert callable(how) or not NAMES_OF_TORCH.search(how)
