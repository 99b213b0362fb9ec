"""The pods of a Kubernetes job over `kubectl exec -i`.

The labels are those of indexed Jobs, JobSet (which Kubeflow's TrainJob uses) and the Kubeflow
training operator; the messages are kubectl's and the API server's."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from mgpu_doctor.cluster.engine import (
    Trouble,
    find_python_trouble,
    last_line,
    quote,
    require_at_most,
    run_listing,
)
from mgpu_doctor.errors import NOTHING_EXAMINED, WRONG_USAGE, DoctorError

_KUBEFLOW, _JOBSET, _JOB = "training.kubeflow.org", "jobset.sigs.k8s.io", "batch.kubernetes.io"
INDEXES = (
    f"{_JOBSET}/job-global-index",
    f"{_JOBSET}/job-index",
    f"{_JOB}/job-completion-index",
    f"{_KUBEFLOW}/replica-index",
    "apps.kubernetes.io/pod-index",
)
"""Labels that number the pods of a job, the coarser ones first."""
FIRST_ROLES = ("chief", "master", "launcher")
NAME_LABELS = (f"{_JOBSET}/jobset-name", f"{_KUBEFLOW}/job-name", f"{_JOB}/job-name")
MOST_PODS = 128
"""Each takes a kubectl process here, of 46 MB or more: 6 GB."""
_WHERE = "where kubectl works"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_SELECTOR = re.compile(r"[^-\s][^\x00-\x1f]{0,1000}")
_ENDED = ("Succeeded", "Failed")


class _Labelled(Struct, frozen=True):
    name: Annotated[str, Meta(max_length=253)]
    labels: dict[str, str] = field(default_factory=dict)


class _Status(Struct, frozen=True):
    phase: str = "Unknown"


class Pod(Struct, frozen=True):
    """A pod, as far as it matters here."""

    metadata: _Labelled
    status: _Status = _Status()


class _Pods(Struct, frozen=True):
    items: tuple[Pod, ...] = ()


class Kubernetes:
    """`--k8s`: pods by their names. `namespace`: None: kubectl's own choice."""

    name = "kubectl"

    def __init__(self, namespace: str | None) -> None:
        self._place = () if namespace is None else (f"--namespace={namespace}",)

    def command(self, host: str, remote: str) -> list[str]:
        words = ("kubectl", "exec", "--stdin", "--quiet", *self._place, host)
        return [*words, "--", "/bin/sh", "-c", remote]

    def describe_trial(self, host: str) -> str:
        return " ".join(("kubectl", "exec", *self._place, host, "--", "true"))

    def explain(self, host: str, code: int, text: str) -> Trouble:
        for mark, remedy in _REMEDIES:
            if line := next((line for line in text.splitlines() if mark in line), None):
                return Trouble(f"kubectl fails with '{line.strip()}'", remedy.format(pod=host))
        if trouble := find_python_trouble(text, code):
            return trouble
        lines = [line for line in text.splitlines() if "terminated with exit code" not in line]
        error = last_line("\n".join(lines), code)
        return Trouble(f"kubectl fails with {error}", f"`{self.describe_trial(host)}` must work")


_REMEDIES = (
    ("(Forbidden)", "ask for the right to create pods/exec in this namespace"),
    ("nauthorized", "log in again: `kubectl auth whoami` must work"),
    ("must be logged in", "log in again: `kubectl auth whoami` must work"),
    ("completed pod", "the pod has ended: examine its log (`kubectl logs {pod}`)"),
    ("(NotFound)", "the pod is gone: start mgpu-doctor again if another one replaced it"),
    ("does not have a host assigned", "the pod waits for a node: `kubectl describe pod {pod}`"),
    ("container not found", "its container does not run: `kubectl describe pod {pod}`"),
    ('"/bin/sh": stat', "its image has no shell: the agent needs /bin/sh and Python"),
    ("/bin/sh: no such file", "its image has no shell: the agent needs /bin/sh and Python"),
)


class _Order(NamedTuple):
    """What pods are sorted by: as their ranks would be, as far as labels say it."""

    role: int
    indexes: tuple[int, ...]
    name: tuple[tuple[int, str], ...]


def find_pods(selector: str, namespace: str | None) -> tuple[tuple[str, ...], Kubernetes]:
    """The pods that a label selector chooses, in the order of their ranks, and how to reach them.
    Pods that have ended are left out. Raises DoctorError."""
    if not _SELECTOR.fullmatch(selector):
        sentence = (
            f"{quote(selector)} selects no pods: name a label, such as {NAME_LABELS[0]}=NAME."
        )
        raise DoctorError(sentence, WRONG_USAGE)
    if namespace is not None and not _NAME.fullmatch(namespace):
        raise DoctorError(f"{quote(namespace)} is not a namespace name.", WRONG_USAGE)
    engine = Kubernetes(namespace)
    place = () if namespace is None else (f"--namespace={namespace}",)
    command = ("kubectl", "get", "pods", f"--selector={selector}", *place, "--output=json")
    shown = run_listing(command, _WHERE)
    if shown.code:
        raise _explain_refusal(last_line(shown.error, shown.code))
    try:
        pods = msgspec.json.decode(shown.out, type=_Pods).items
    except (msgspec.DecodeError, RecursionError):
        sentence = "kubectl prints no list of pods: `kubectl get pods -o json` must work."
        raise DoctorError(sentence, NOTHING_EXAMINED) from None
    there = [pod for pod in pods if pod.status.phase not in _ENDED]
    names = tuple(pod.metadata.name for pod in sorted(there, key=_order))
    if not names or not all(map(_NAME.fullmatch, names)):
        raise _explain_none(selector, pods)
    require_at_most(MOST_PODS, len(names), "kubectl")
    return names, engine


def _explain_refusal(error: str) -> DoctorError:
    if "unable to parse requirement" in error or "parsing" in error:
        sentence = f"kubectl does not understand the selector: {error}."
        return DoctorError(sentence, WRONG_USAGE)
    remedy = "`kubectl get pods` must work"
    if "(Forbidden)" in error:
        remedy = "ask for the right to list pods and to create pods/exec, or name another namespace"
    return DoctorError(f"kubectl fails with {error}: {remedy}.", NOTHING_EXAMINED)


def _explain_none(selector: str, pods: tuple[Pod, ...]) -> DoctorError:
    if pods:
        phases = ", ".join(sorted({pod.status.phase for pod in pods}))
        sentence = (
            f"all {len(pods)} pods of {selector} have ended ({phases}): examine their logs, "
            f"such as `kubectl logs {pods[0].metadata.name} | mgpu-doctor diagnose -`."
        )
        return DoctorError(sentence, NOTHING_EXAMINED)
    hint = "check it with `kubectl get pods --show-labels`, and name the namespace with -n"
    if "=" not in selector and " " not in selector:
        hint = f"name a label and its value, such as --k8s {NAME_LABELS[0]}={selector}"
    return DoctorError(f"no pod matches {selector}: {hint}.", NOTHING_EXAMINED)


def _order(pod: Pod) -> _Order:
    labels = pod.metadata.labels
    role = labels.get(f"{_KUBEFLOW}/replica-type", "").lower()
    parts = re.findall(r"\d{1,18}|\D+", pod.metadata.name)
    return _Order(
        0 if role in FIRST_ROLES else 1,
        tuple(_index(labels.get(label, "")) for label in INDEXES),
        tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts),
    )


def _index(value: str) -> int:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
