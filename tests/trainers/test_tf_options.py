"""TensorFlow trainers by name: how they are started, and what they reject."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from mgpu_trainers import catalogue, cluster
from mgpu_trainers.capabilities import UsageError
from mgpu_trainers.cluster import Cluster, Task

NAMES = [trainer.name for trainer in catalogue.TRAINERS if trainer.framework == "tensorflow"]


def command(name: str, ranks: int | None = None, **options: object) -> list[str]:
    return catalogue.command(catalogue.find(name), ranks, options)


@pytest.mark.parametrize(
    ("name", "ranks", "started"),
    [
        ("tf-single", None, "-m mgpu_trainers.tensorflow.tf_single --steps 5"),
        ("tf-mirrored", 1, "-m mgpu_trainers.tensorflow.tf_mirrored --steps 5"),
        (
            "tf-multiworker",
            3,
            "-m mgpu_trainers.tensorflow.launcher --workers 3 --servers 0 "
            "mgpu_trainers.tensorflow.tf_multiworker --steps 5",
        ),
        (
            "tf-ps",
            None,
            "-m mgpu_trainers.tensorflow.launcher --workers 2 --servers 1 "
            "mgpu_trainers.tensorflow.tf_ps --steps 5",
        ),
    ],
)
def test_each_is_started_by_what_it_needs(name: str, ranks: int | None, started: str) -> None:
    assert " ".join(command(name, ranks, steps=5)[1:]) == started


@pytest.mark.parametrize(
    ("name", "options", "wrong", "reason"),
    [
        ("tf-mirrored", {"global_batch": 9}, "global-batch", "2 equal batches (2 replicas × "),
        ("tf-mirrored", {"api": "fit", "accumulate": 2}, "accumulate", "keras issue 20582"),
        ("tf-mirrored", {"fault": "kill:rank=1"}, "fault", "one process, which is rank=0"),
        ("tf-mirrored", {"fault": "slow:rank=2,ms=1"}, "fault", "no rank 2 among 2"),
        ("tf-mirrored", {"fault": "uneven:rank=0"}, "fault", "divides each batch evenly"),
        ("tf-mirrored", {"api": "fit", "fault": "nan:rank=0"}, "fault", "take --api loop"),
        ("tf-multiworker", {"api": "fit"}, "api", "tf-multiworker has no option --api"),
        ("tf-multiworker", {"fault": "stall:kind=save"}, "fault", "kind=sleep or kind=gc"),
        ("tf-multiworker", {"fault": "slow:phase=input,factor=2"}, "fault", "give ms="),
        ("tf-multiworker", {"fault": "missing:rank=all"}, "fault", "is of one rank, not of all"),
        ("tf-multiworker", {"fault": "hog:rank=2"}, "fault", "no rank 2 among 2"),
        ("tf-multiworker", {"fault": "same-data"}, "fault", "same-data is for torch-ddp, "),
        ("tf-mirrored", {"fault": "hog:rank=0"}, "fault", "tf-multiworker, not tf-mirrored"),
        ("tf-ps", {"fault": "missing:rank=0"}, "fault", "tf-multiworker, not tf-ps"),
        ("tf-ps", {"fault": "hang:rank=0"}, "fault", "runs no Python of ours"),
        ("tf-ps", {"fault": "slow:rank=2,ms=5"}, "fault", "servers (rank=2 and up) can only be k"),
        ("tf-ps", {"fault": "kill:rank=3"}, "fault", "no rank 3 among 3"),
        ("tf-ps", {"save_every": 5}, "save-every", "needs a folder"),
        ("tf-tpu", {"fault": "slow:rank=0,ms=5"}, "fault", "tf-tpu runs no Python of ours"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_options_name(
    name: str, options: dict[str, object], wrong: str, reason: str
) -> None:
    with pytest.raises(UsageError) as refused:
        command(name, None, **options)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.option == wrong


def test_where_several_replicas_are_one_process_it_says_how_to_have_more() -> None:
    with pytest.raises(UsageError, match="--ranks can only be 1; take --replicas"):
        command("tf-mirrored", 2)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tf-mirrored", {"replicas": 4, "fault": "slow:rank=3,phase=backward,factor=2"}),
        ("tf-mirrored", {"fault": "nan:rank=1;slow-loader:ms=5;leak:rank=0"}),
        ("tf-multiworker", {"fault": "uneven;kill:step=3", "accumulate": 2, "timeout": 30}),
        ("tf-multiworker", {"fault": "hog:rank=0,processes=3", "timeout": 30}),
        ("tf-multiworker", {"fault": "missing:rank=0", "timeout": 30}),
        ("tf-ps", {"servers": 2, "fault": "kill:rank=3,step=5;slow:ms=5,from=9"}),
    ],
)
def test_what_goes_together_is_taken(name: str, options: dict[str, object]) -> None:
    assert command(name, None, **options)


def test_a_worker_itself_counts_ranks_by_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Cluster({"worker": ("a:1", "b:2", "a:3")})
    monkeypatch.setenv(cluster.VARIABLE, whole.config(Task("worker", 2)))
    read = catalogue.arguments(catalogue.find("tf-multiworker"), ["--fault", "kill:rank=2"])
    assert read.fault == ["kill:rank=2"]
    assert cluster.read_own_task("tf-multiworker") == (whole, Task("worker", 2))
    assert [whole.place(task) for task in whole.tasks()] == [0, 0, 1]


@pytest.mark.parametrize(
    "message",
    [
        None,
        "{",
        "[]",
        "{}",
        json.dumps({"cluster": {"worker": ["a:1"]}}),
        json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}),
        json.dumps({"cluster": {"worker": 7}, "task": {"type": "worker", "index": 0}}),
        json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}),
    ],
)
def test_a_cluster_that_cannot_be_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, message: str | None
) -> None:
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    if message is not None:
        monkeypatch.setenv(cluster.VARIABLE, message)
    with pytest.raises(SystemExit) as ended:
        cluster.read_own_task("tf-ps")
    assert str(ended.value).startswith("tf-ps: ")
    assert "\n" not in str(ended.value)


def test_a_local_cluster_has_ports_of_its_own() -> None:
    whole = cluster.local_cluster(workers=3, servers=2)
    assert [str(task) for task in whole.tasks()] == [
        *("the chief", "worker 0", "worker 1", "worker 2"),
        *("parameter server 0", "parameter server 1"),
    ]
    taken = [address for each in whole.addresses.values() for address in each]
    assert len(set(taken)) == 6
    assert "chief" not in cluster.local_cluster(workers=2, servers=0).addresses


def test_names_and_options_need_no_framework() -> None:
    wanted = f"[catalogue.command(catalogue.find(name), None, {{}}) for name in {NAMES}]"
    loaded = "sorted({'tensorflow', 'keras', 'torch', 'numpy'} & {*sys.modules})"
    script = f"import sys; from mgpu_trainers import catalogue; {wanted}; print({loaded})"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ended.stdout == b"[]\n"
