"""The pods of a Kubernetes job by what kubectl prints, and what its messages mean. No Kubernetes is
here: `tests/cluster/recorded_kubectl` answers from a recording, and executes on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mgpu_doctor.cli import app
from mgpu_doctor.cluster.kubernetes_pods import Kubernetes, find_pods
from mgpu_doctor.errors import DoctorError
from tests.support.node_ranks import node_rank

KUBECTL = Path(__file__).parents[2] / "cluster" / "recorded_kubectl"
FAILS = "#!/bin/sh\nprintf '%s\\n' '{error}' >&2\nexit 1\n"
Record = Callable[..., None]
JOBSET, KUBEFLOW, JOB = "jobset.sigs.k8s.io", "training.kubeflow.org", "batch.kubernetes.io"


@pytest.fixture(autouse=True)
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `kubectl`, the first on PATH, that answers from a recording."""
    script = tmp_path / "bin" / "kubectl"
    script.parent.mkdir()
    script.symlink_to(KUBECTL)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORDED_PODS", str(tmp_path / "pods.json"))
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return script


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Records pods: name -> phase, or labels of a running one."""

    def write(**pods: str | dict[str, str]) -> None:
        items = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name.replace("_", "-"),
                    "labels": {"app": "llama", **({} if isinstance(facts, str) else facts)},
                },
                "status": {"phase": facts if isinstance(facts, str) else "Running", "podIP": "x"},
            }
            for name, facts in pods.items()
        ]
        listing = {"apiVersion": "v1", "kind": "List", "items": items}
        (tmp_path / "pods.json").write_text(json.dumps(listing))

    return write


def test_labels_order_pods_as_their_ranks(record: Record) -> None:
    record(
        llama_node_0_1_zz={f"{JOBSET}/job-global-index": "0", f"{JOB}/job-completion-index": "1"},
        llama_node_1_0_aa={f"{JOBSET}/job-global-index": "1", f"{JOB}/job-completion-index": "0"},
        llama_node_0_0_bb={f"{JOBSET}/job-global-index": "0", f"{JOB}/job-completion-index": "0"},
    )
    pods, _ = find_pods("x=y", None)
    assert pods == ("llama-node-0-0-bb", "llama-node-0-1-zz", "llama-node-1-0-aa")
    worker = {f"{KUBEFLOW}/replica-type": "worker"}
    record(
        a_worker_10={**worker, f"{KUBEFLOW}/replica-index": "10"},
        a_worker_9={**worker, f"{KUBEFLOW}/replica-index": "9"},
        z_master_0={f"{KUBEFLOW}/replica-type": "master", f"{KUBEFLOW}/replica-index": "0"},
    )
    assert find_pods("x=y", None)[0] == ("z-master-0", "a-worker-9", "a-worker-10")
    record(p_10="Running", p_9="Pending", p_8="Succeeded", p_7="Failed")
    assert find_pods("x=y", None)[0] == ("p-9", "p-10")


def test_commands_name_the_pod_and_its_namespace() -> None:
    command = Kubernetes("training").command("p-0", "exec sh")
    assert command[:3] == ["kubectl", "exec", "--stdin"]
    assert command[-6:] == ["--namespace=training", "p-0", "--", "/bin/sh", "-c", "exec sh"]
    assert not [word for word in Kubernetes(None).command("p-0", "x") if "namespace" in word]


def test_the_job_of_a_pod_is_diagnosed(record: Record, tmp_path: Path) -> None:
    record(llama_0={f"{JOB}/job-completion-index": "0"}, llama_gone="Running")
    with node_rank(tmp_path / "boxes", port=4243) as rank:
        rank.write(50)
        done = CliRunner().invoke(app, ("diagnose", "--k8s", "app=llama", "-n", "x", "--json"))
        assert done.exit_code in (0, 1), done.stderr
        decoder, text, jobs = json.JSONDecoder(), done.stdout.strip(), []
        while text:  # one object for each job of this machine
            job, end = decoder.raw_decode(text)
            jobs.append(job)
            text = text[end:].strip()
        pid = rank.process.pid
    (own,) = (job for job in jobs if pid in [each["pid"] for each in job["ranks"]])
    (gap,) = (gap for gap in own["unexamined"] if gap["probe"].startswith("host "))
    assert gap["probe"] == "host llama-gone"
    assert "(NotFound)" in gap["reason"]


@pytest.mark.slow
@pytest.mark.untimed
def test_the_pods_of_a_job_can_be_tested(record: Record) -> None:
    record(llama_0="Running", llama_gone="Running")
    words = ("preflight", "--k8s", "app=llama", "-n", "x", "--python", "none", "--json")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.stderr
    there, gone = json.loads(done.stdout)["hosts"]
    assert (there["name"], there["trouble"]) == ("llama-0", None)
    assert there["core_speed"]
    assert (gone["name"], "(NotFound)" in gone["trouble"]) == ("llama-gone", True)


def test_pods_that_cannot_be_tested(record: Record) -> None:
    record(llama_gone="Running")
    done = CliRunner().invoke(app, ("preflight", "--k8s", "app=llama", "--pairs"))
    assert done.exit_code == 3
    (line,) = done.stderr.splitlines()
    assert "llama-gone: kubectl fails with" in line


def test_no_pod_to_examine(record: Record) -> None:
    record()
    for selector, words in (
        ("app=llama", "kubectl get pods --show-labels"),
        ("llama", "--k8s jobset.sigs.k8s.io/jobset-name=llama"),
    ):
        done = CliRunner().invoke(app, ("diagnose", "--k8s", selector))
        assert done.exit_code == 3
        (line,) = done.stderr.splitlines()
        assert words in line
    record(llama_0="Failed", llama_1="Succeeded")
    done = CliRunner().invoke(app, ("diagnose", "--k8s", "app=llama"))
    assert done.exit_code == 3
    assert "all 2 pods of app=llama have ended (Failed, Succeeded)" in done.stderr
    assert "kubectl logs llama-0" in done.stderr


@pytest.mark.parametrize(
    ("error", "words", "exit_code"),
    [
        (
            'Error from server (Forbidden): pods is forbidden: User "me" cannot list resource '
            '"pods" in API group "" in the namespace "x"',
            "right to list pods",
            3,
        ),
        ('error: unable to parse requirement: found "="', "understand the selector", 2),
        ("The connection to the server localhost:8080 was refused", "kubectl get pods", 3),
    ],
)
def test_kubectl_fails(kubectl: Path, error: str, words: str, exit_code: int) -> None:
    kubectl.unlink()
    kubectl.write_text(FAILS.format(error=error))
    kubectl.chmod(0o700)
    with pytest.raises(DoctorError) as raised:
        find_pods("app=llama", None)
    assert words in str(raised.value)
    assert raised.value.exit_code == exit_code


def test_wrong_usage(kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (
        ("--k8s", ""),
        ("--k8s", "--all"),
        ("--k8s", "a=b", "-n", "-A"),
        ("--k8s", "a=b", "--hosts", "a"),
        ("-n", "x"),
    ):
        done = CliRunner().invoke(app, ("diagnose", *arguments))
        assert done.exit_code == 2, arguments
        assert len(done.stderr.splitlines()) == 1
    kubectl.unlink()
    monkeypatch.setenv("PATH", str(kubectl.parent))
    done = CliRunner().invoke(app, ("diagnose", "--k8s", "a=b"))
    assert done.exit_code == 3
    assert "kubectl cannot be started" in done.stderr


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        (
            'Error from server (Forbidden): pods "p-0" is forbidden: User "me" cannot create '
            'resource "pods/exec"\n',
            "(Forbidden)",
            "create pods/exec",
        ),
        ('Error from server (NotFound): pods "p-0" not found\n', "(NotFound)", "gone"),
        (
            "error: cannot exec into a container in a completed pod; current phase is Succeeded\n",
            "completed pod",
            "kubectl logs p-0",
        ),
        (
            "/bin/sh: 1: exec: python3: not found\ncommand terminated with exit code 127\n",
            "finds no python3",
            "install Python 3.10",
        ),
        (
            'error: exec failed: "/bin/sh": stat /bin/sh: no such file or directory\n',
            "/bin/sh",
            "no shell",
        ),
        ("Killed\ncommand terminated with exit code 137\n", "'Killed'", "kubectl exec p-0"),
    ],
)
def test_messages(text: str, reason: str, remedy: str) -> None:
    trouble = Kubernetes(None).explain("p-0", 1, text)
    assert reason in trouble.reason
    assert remedy in trouble.remedy
