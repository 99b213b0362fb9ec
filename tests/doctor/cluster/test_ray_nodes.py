"""The nodes of a Ray cluster by what the helper prints, with a script in place of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mgpu_doctor.cluster import ray_nodes, ray_relay
from mgpu_doctor.cluster.ray_nodes import find_ray_nodes
from mgpu_doctor.errors import DoctorError


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The helper: a shell script."""
    script = tmp_path / "relay"
    monkeypatch.setattr(ray_nodes, "RELAY", ("/bin/sh", str(script)))
    return script


def test_nodes_are_named_and_reached_by_their_ids(relay: Path) -> None:
    relay.write_text(
        """echo '[["aaaa1111bb", "n1"], ["cccc2222dd", "n2"], ["eeee3333ff", "n2"]]'"""
    )
    nodes, engine = find_ray_nodes("auto")
    assert nodes == ("n1", "n2-cccc2222", "n2-eeee3333")
    assert engine.command("n2-eeee3333", "exec sh")[2:] == ["auto", "eeee3333ff", "exec sh"]


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (
            "echo 'there is no Ray in /usr/bin/python3' >&2; exit 1",
            "pip install 'mgpu-doctor[ray]'",
        ),
        ("echo 'ConnectionError: Could not find any running' >&2; exit 1", "--ray HOST:6379"),
        ("echo 'RuntimeError: Version mismatch: 2.9 and 2.6' >&2; exit 1", "another version"),
        ("echo 'RuntimeError: no' >&2; exit 1", "does not answer: 'RuntimeError: no'"),
        ("echo '[]'", "no living node"),
        ("echo hello", "no living node"),
    ],
)
def test_no_cluster(relay: Path, printed: str, words: str) -> None:
    relay.write_text(printed)
    with pytest.raises(DoctorError) as raised:
        find_ray_nodes("auto")
    assert words in str(raised.value)
    assert raised.value.exit_code == 3


def test_addresses() -> None:
    for address in ("", "-x", "a b"):
        with pytest.raises(DoctorError, match="not the address of a Ray cluster") as raised:
            find_ray_nodes(address)
        assert raised.value.exit_code == 2
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(DoctorError, match=f"no Ray answers at 127.0.0.1:{port}") as raised:
            find_ray_nodes(f"127.0.0.1:{port}")
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ray.exceptions.ActorUnschedulableError: The actor is not schedulable\n", "an actor"),
        ("sh: 1: exec: python3: not found\n", "finds no python3"),
        ("RuntimeError: lost\n", "'RuntimeError: lost'"),
    ],
)
def test_messages(text: str, reason: str) -> None:
    assert reason in ray_nodes.Ray("auto", {"n1": "aaaa"}).explain("n1", 1, text).reason


def test_a_command_sees_the_gpus_that_ray_hides() -> None:
    for value, seen in (("", "unset"), ("0,2", "0,2")):
        environment = ray_relay._show_gpus({"CUDA_VISIBLE_DEVICES": value, "EMPTY": ""})
        assert environment.get("CUDA_VISIBLE_DEVICES", "unset") == seen
        assert environment["EMPTY"] == ""
