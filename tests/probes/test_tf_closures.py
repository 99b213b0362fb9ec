"""What the process metadata says of workers' closures and of data sets. TensorFlow is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.inprocess.frameworks.tensorflow import cluster_coordinator, dataset_pipelines
from mgpu_probes.inprocess.frameworks.tensorflow.replica_latencies import NEWEST, Latencies


class Probe:
    """Its clock goes on by 10 ms whenever it is looked at; recording a step renews the metadata."""

    def __init__(self) -> None:
        self.on = True
        self.now = 0
        self.metadata: list[dict[str, Any]] = []

    def clock(self) -> int:
        self.now += 10_000_000
        return self.now

    def record_step(self, _step: Any) -> None:
        self.metadata.append(cluster_coordinator._describe())

    def fail(self, trouble: Exception) -> None:
        raise trouble


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    probe = Probe()
    for module in (cluster_coordinator, dataset_pipelines):
        monkeypatch.setattr(module, "probe", probe, raising=False)
    monkeypatch.setattr(cluster_coordinator, "_workers", {})
    monkeypatch.setattr(cluster_coordinator, "last_closure", cluster_coordinator._Last())
    monkeypatch.setattr(dataset_pipelines, "_pipelines", [])
    return probe


@pytest.mark.timeout(20)
def test_a_step_that_renews_the_metadata_reads_what_it_is_part_of(probe: Probe) -> None:
    for _ in range(3):
        token = cluster_coordinator._closure_begins((SimpleNamespace(worker_index=1),), {})
        assert token is not None
        cluster_coordinator._closure_ends(token, None)
    (told,) = probe.metadata[-1]["closures"]
    assert (told["worker"], told["count"], told["newest"]) == (1, 3, 3)
    assert told["quartiles"] == pytest.approx([0.01] * 3)
    assert told["seconds"] == pytest.approx(0.03)


def test_the_newest_are_reported_by_themselves() -> None:
    seen = Latencies(ahead=2)
    for seconds in (50.0, 40.0, *range(NEWEST + 36)):
        seen.add(float(seconds))
    assert (seen.count, seen.longest) == (NEWEST + 36, NEWEST + 35)
    assert seen.describe_newest() == {"newest": NEWEST, "quartiles": [100.0, 164.0, 227.0]}
    assert Latencies().describe_newest() == {"newest": 0, "quartiles": None}


def dataset(name: str, of: Any = None, **facts: Any) -> Any:
    made = type(name, (), {})()
    made._input_dataset = of
    for key, value in facts.items():
        setattr(made, key, value)
    return made


def tensor(value: int) -> Any:
    return SimpleNamespace(numpy=lambda: value)


def test_a_pipeline_is_reported_from_its_end() -> None:
    samples = dataset("_TensorSliceDataset")
    mapped = dataset("_MapDataset", dataset("CacheDataset", samples))
    faster = dataset("_ParallelMapDataset", mapped, _num_parallel_calls=tensor(-1))
    ahead = dataset("_PrefetchDataset", faster, _buffer_size=tensor(-1))
    settings = SimpleNamespace(
        autotune=SimpleNamespace(enabled=False),
        threading=SimpleNamespace(private_threadpool_size=3),
    )
    assert dataset_pipelines.describe_pipeline(
        dataset("_OptionsDataset", ahead, _options_attr=settings)
    ) == {
        "operations": ["Prefetch", "ParallelMap", "Map", "Cache", "TensorSlice"],
        "prefetch": -1,
        "parallel_calls": 1,
        "cached": True,
        "autotune": False,
        "threads": 3,
    }


def test_each_kind_of_pipeline_is_reported_once(probe: Probe) -> None:
    assert probe.on
    for _ in range(3):
        dataset_pipelines._note_pipeline(
            (None, dataset("_BatchDataset", dataset("RangeDataset"))), {}
        )
    dataset_pipelines._note_pipeline((None,), {"dataset": dataset("_BatchDataset")})
    dataset_pipelines._note_pipeline(
        (None, dataset("_PrefetchDataset", dataset("_VariantDataset"))), {}
    )
    told = dataset_pipelines._describe()["pipelines"]
    assert [one["operations"] for one in told] == [["Batch", "Range"], ["Batch"]]
    assert (told[0]["prefetch"], told[0]["parallel_calls"]) == (0, None)
