"""The catalogue of treatments: every one can be applied, and is proposed only where it fits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.inprocess.treatments.treatment_adapter import APPLICATIONS, SWITCHABLE

from mgpu_doctor.advice.treatment import Situation
from mgpu_doctor.advice.treatment_catalogue import (
    TREATMENTS,
    check_values,
    find_by_fix,
    split_by_way,
)
from mgpu_doctor.case.process_metadata import process_metadata

RULES = Path(__file__).parents[3] / "mgpu_doctor" / "rules"


LOADER = {"workers": 0, "dataset_length": 100}


def situation(**facts: Any) -> Situation:
    """A job with DistributedDataParallel on two cores per rank."""
    given: dict[str, Any] = {
        "framework": "torch",
        "strategy": frozenset({"ddp"}),
        "cores": 2.0,
        "micro_batches": 1,
        "garbage_share": 0.0,
        "saves": False,
    }
    given |= {name: facts.pop(name) for name in given if name in facts}
    return Situation(metadata=process_metadata(facts), **given)


def test_every_patch_can_be_applied_and_every_variable_set() -> None:
    patches = {name for name, each in TREATMENTS.items() if not each.environment}
    assert patches == APPLICATIONS.keys()
    assert {name for name, each in TREATMENTS.items() if each.switches} == SWITCHABLE


def test_fixes_that_treatments_apply_are_those_of_rules() -> None:
    texts = [file.read_text(encoding="utf-8") for file in RULES.rglob("*.py")]
    ids = {fix for text in texts for fix in re.findall(r'Fix\(\s*"([a-z0-9-]+)"', text)}
    for remedy in {each.applies for each in TREATMENTS.values() if each.applies is not None}:
        assert remedy.fix in ids
        constant = remedy.fix.upper().replace("-", "_")
        own = [text for text in texts if f'"{remedy.fix}"' in text or constant in text]
        for code in remedy.codes:
            assert any(re.search(rf'(code=|CODE = )"{code}"', text) for text in own), remedy


@pytest.mark.parametrize(
    ("fix", "facts", "name"),
    [
        ("load-in-background", {"loaders": [LOADER]}, "loader-workers"),
        ("load-in-background", {"loaders": [LOADER | {"workers": 2}]}, "loader-prefetch"),
        (
            "load-in-background",
            {"framework": "tensorflow", "pipelines": [{"prefetch": 0}]},
            "tf-prefetch",
        ),
        ("check-shard", {"loaders": [LOADER]}, None),
    ],
)
def test_a_fix_names_the_treatment_that_fits_the_job(
    fix: str, facts: dict[str, Any], name: str | None
) -> None:
    treatment = find_by_fix(fix, situation(**facts))
    assert name == (treatment and treatment.name)


@pytest.mark.parametrize(
    ("name", "facts", "value"),
    [
        ("loader-workers", {"loaders": [LOADER]}, 2),
        ("loader-workers", {"loaders": [LOADER], "cores": 32.0}, 4),
        ("loader-workers", {"loaders": [LOADER], "cores": 0.5}, 1),
        ("loader-workers", {"loaders": [LOADER | {"workers": 3}]}, None),
        ("loader-workers", {"loaders": [{"workers": 0}]}, None),
        ("loader-workers", {}, None),
        ("loader-prefetch", {"loaders": [{"workers": 2, "prefetch_factor": 2}]}, 4),
        ("loader-prefetch", {"loaders": [LOADER]}, None),
        ("loader-persistent", {"loaders": [{"workers": 2, "persistent_workers": False}]}, True),
        ("loader-persistent", {"loaders": [{"workers": 2, "persistent_workers": True}]}, None),
        ("ddp-no-search", {"ddp": {"find_unused_parameters": True, "unused_bytes": 0}}, True),
        ("ddp-no-search", {"ddp": {"find_unused_parameters": True, "unused_bytes": 8}}, None),
        ("ddp-no-search", {"ddp": {"find_unused_parameters": False}}, None),
        ("ddp-static-graph", {"ddp": {"graph_varies": True}}, None),
        ("ddp-bucket-size", {"ddp": {"parameter_bytes": 1 << 20, "bucket_cap_bytes": 25 << 20}},
         None),
        ("ddp-bucket-size", {"ddp": {"parameter_bytes": 1 << 30, "bucket_cap_bytes": 25 << 20}},
         100),
        ("ddp-bucket-size", {"ddp": {"parameter_bytes": 1 << 30, "bucket_cap_bytes": 1 << 30}}, 25),
        ("ddp-no-sync", {"micro_batches": 4, "ddp": {"forwards": 40, "synced": 40}}, 4),
        ("ddp-no-sync", {"micro_batches": 4, "ddp": {"forwards": 40, "synced": 10}}, None),
        ("ddp-no-sync", {"micro_batches": 1, "ddp": {"forwards": 40, "synced": 40}}, None),
        ("optimizer-fused", {"optimizers": [{"class": "AdamW"}]}, True),
        ("optimizer-fused", {"optimizers": [{"class": "Lion"}]}, None),
        ("optimizer-fused", {}, None),
        ("optimizer-foreach", {"optimizers": [{"class": "SGD"}], "device": "cuda:0"}, None),
        ("gc-freeze", {"garbage_share": 0.02}, True),
        ("gc-together", {"garbage_share": 0.02}, 500),
        ("gc-freeze", {"garbage_share": 0.001}, None),
        ("gc-freeze", {"garbage_share": None}, None),
        ("autocast-bf16", {"precision": "float32+bfloat16+autocast"}, None),
        ("threads", {"threads": 1, "cores": 4.0}, 4),
        ("threads", {"threads": 8, "cores": 0.5}, 1),
        ("threads", {"threads": 2}, None),
        ("rank-cores", {"local_world_size": 2}, True),
        ("rank-cores", {"local_world_size": 2, "cores": 0.5}, None),
        ("rank-cores", {}, None),
        ("checkpoint-in-background", {"saves": True}, True),
        ("checkpoint-in-background", {}, None),
        ("ddp-compress-bf16", {"ddp": {"comm_hook": "own"}}, None),
        ("ddp-power-sgd", {}, 2),
        ("fsdp-keep-gathered", {}, None),
        ("fsdp-keep-gathered", {"strategy": frozenset({"fsdp"})}, True),
        ("cudnn-benchmark", {"device": "cpu"}, None),
        ("cudnn-benchmark", {"device": "cuda:0"}, True),
        ("loader-pin-memory", {"device": "cuda:0", "loaders": [{"pin_memory": True}]}, None),
        ("tf-prefetch", {"framework": "tensorflow", "pipelines": [{"prefetch": 0}]}, True),
        ("tf-prefetch", {"framework": "tensorflow", "pipelines": [{"prefetch": -1}]}, None),
        ("tf-parallel-map", {"framework": "tensorflow", "pipelines": [{"parallel_calls": 1}]}, 2),
        ("tf-parallel-map", {"framework": "tensorflow", "pipelines": [{}]}, None),
        ("tf-cache", {"framework": "tensorflow", "pipelines": [{"cached": False}]}, True),
        ("tf-cache", {"framework": "tensorflow", "pipelines": [{"cached": True}]}, None),
        ("tf-threads", {"framework": "tensorflow", "affinity": 8}, 2),
        ("tf-threads", {"framework": "tensorflow", "affinity": 8, "threads": 2}, None),
        ("tf-pack-size", {"framework": "tensorflow", "strategy": frozenset({"mirrored"})}, None),
        ("tf-pack-size", {"framework": "tensorflow", "strategy": frozenset({"multiworker"})}, 32),
        ("optimizer-zero1", {"optimizers": [{"class": "AdamW"}]}, True),
        ("optimizer-zero1", {"optimizers": [{"class": "Lion"}]}, None),
        ("optimizer-zero1", {"strategy": frozenset({"ddp", "zero1"})}, None),
        ("activation-checkpointing", {"strategy": frozenset({"fsdp"})}, True),
        ("activation-checkpointing", {"strategy": frozenset({"single"})}, True),
        ("activation-checkpointing", {"strategy": frozenset({"pipeline"})}, None),
        ("autocast-bf16", {"strategy": frozenset({"single"})}, True),
        ("compile", {"strategy": frozenset({"manual"})}, True),
        ("channels-last", {"strategy": frozenset({"fsdp"})}, None),
        ("fsdp-prefetch", {"strategy": frozenset({"fsdp"}), "device": "cuda:0"}, 2),
        ("fsdp-prefetch", {"strategy": frozenset({"fsdp"}), "device": "cpu"}, None),
        ("interop-threads", {"interop_threads": 16}, 2),
        ("interop-threads", {"interop_threads": 2}, None),
        ("gloo-threads", {"backend": "cpu:gloo,cuda:nccl"}, 8),
        ("gloo-threads", {"backend": "nccl"}, None),
        ("nccl-socket-threads", {"backend": "nccl", "device": "cuda:0"}, 4),
        ("nccl-high-priority", {"backend": "gloo", "device": "cuda:0"}, None),
        ("keep-host-memory", {"device": "cpu"}, True),
        ("keep-host-memory", {"device": "cuda:0"}, None),
    ],
)  # fmt: skip
def test_a_value_is_proposed_where_the_treatment_fits(
    name: str, facts: dict[str, Any], value: object
) -> None:
    found = TREATMENTS[name].find_value(situation(**facts))
    assert isinstance(found, str) if value is None else found == value


def test_treatments_of_another_framework_or_strategy_do_not_fit() -> None:
    other = situation(framework="tensorflow", strategy=frozenset({"mirrored"}), garbage_share=0.5)
    fitting = {name for name, each in TREATMENTS.items() if each.find_value(other) is True}
    assert fitting == {"gc-freeze", "keep-host-memory", "keras-jit", "keras-mixed-bf16"}
    single = situation(strategy=frozenset({"single"}))
    assert isinstance(TREATMENTS["ddp-bucket-view"].find_value(single), str)


def test_what_sets_the_same_variable_cannot_be_combined() -> None:
    for name, treatment in TREATMENTS.items():
        for other_name, other in TREATMENTS.items():
            if name != other_name and treatment.environment.keys() & other.environment.keys():
                with pytest.raises(ValueError, match=f"{name} and {other_name} both set"):
                    check_values(
                        [
                            (each.name, True if each.values is None else each.values[0])
                            for each in (treatment, other)
                        ]
                    )


def test_values_of_users_and_files_are_checked() -> None:
    workers, freeze = TREATMENTS["loader-workers"], TREATMENTS["gc-freeze"]
    assert workers.parse_value("8") == 8
    assert freeze.parse_value("") is True
    for text in ("0", "65", "-1", "1.5", "many", "", "٣", "9" * 30):
        with pytest.raises(ValueError, match="whole number from 1 to 64"):
            workers.parse_value(text)
    with pytest.raises(ValueError, match="no value"):
        freeze.parse_value("2")
    assert check_values([("loader-workers", 8), ("gc-freeze", True)]) == {
        "loader-workers": 8,
        "gc-freeze": True,
    }
    for wrong in (("loader-workers", True), ("loader-workers", "8"), ("gc-freeze", 1), ("x", 1)):
        with pytest.raises(ValueError, match=r"\w"):
            check_values([wrong])


def test_patches_go_to_the_probe_and_variables_to_the_environment() -> None:
    assert split_by_way({"threads": 2, "gc-freeze": True}) == (
        {"gc-freeze": True},
        {"OMP_NUM_THREADS": "2"},
    )
    assert split_by_way({"nccl-socket-threads": 4, "keep-host-memory": True})[1] == {
        "NCCL_SOCKET_NTHREADS": "4",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "17179869184",
    }
    assert split_by_way({"expandable-segments": True}) == (
        {},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
