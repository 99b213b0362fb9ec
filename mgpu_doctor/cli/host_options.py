"""The options that name the hosts of a job, one per engine: `--hosts A,B`, `--slurm JOBID`,
`--k8s SELECTOR`, `--ray`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mgpu_doctor.cli.terminal_output import WRONG_USAGE, exit_with
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.cluster.engine import Engine

_HOSTS = click.option(
    "--hosts",
    metavar="HOST,HOST...",
    help="Hosts of a job, by the names that `ssh` knows. Nothing needs to be installed on them but "
    "Python 3.10 or newer.",
)
_SLURM = click.option("--slurm", metavar="JOBID", help="A Slurm job: its nodes, over `srun`.")

_K8S = click.option(
    "--k8s",
    metavar="SELECTOR",
    help="The pods of a Kubernetes job by a label, over `kubectl exec`.",
)
_NAMESPACE = click.option(
    "--namespace", "-n", metavar="NAMESPACE", help="The namespace of --k8s, if not kubectl's own."
)

_RAY = click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="auto",
    help="The nodes of a Ray cluster. Without an address, the one of this machine.",
)


class HostsRequest(NamedTuple):
    """Which hosts the user wants. `option`: the option that names them, `value`: its value,
    `namespace`: of pods."""

    option: str
    value: str
    namespace: str | None = None

    def find(self, *, whole: bool = False) -> tuple[tuple[str, ...], Engine]:
        """The hosts, each once, and how to reach them. `whole`: so that a command has all that the
        job has of its host, GPUs too. Raises DoctorError."""
        if self.option == "--slurm":
            from mgpu_doctor.cluster.slurm_nodes import find_nodes

            return find_nodes(self.value, whole=whole)
        if self.option == "--k8s":
            from mgpu_doctor.cluster.kubernetes_pods import find_pods

            return find_pods(self.value, self.namespace)
        if self.option == "--ray":
            from mgpu_doctor.cluster.ray_nodes import find_ray_nodes

            return find_ray_nodes(self.value)
        from mgpu_doctor.cluster.openssh import parse_hosts

        return parse_hosts(self.value)


def _choose_request(given: Mapping[str, str | None], namespace: str | None) -> HostsRequest | None:
    """The request of the only option that has a value; None if none has."""
    chosen = [
        HostsRequest(name, value, namespace) for name, value in given.items() if value is not None
    ]
    if len(chosen) > 1:
        names = " and ".join(request.option for request in chosen)
        exit_with(WRONG_USAGE, f"{names} cannot be combined: one job has one engine.")
    return chosen[0] if chosen else None


def host_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a verb, which takes the one that is given as `hosts`."""

    @functools.wraps(verb)
    def with_hosts(
        *args: Any,
        hosts: str | None,
        slurm: str | None,
        k8s: str | None,
        namespace: str | None,
        ray: str | None,
        **others: Any,
    ) -> Any:
        given = {"--hosts": hosts, "--slurm": slurm, "--k8s": k8s, "--ray": ray}
        request = _choose_request(given, namespace)
        if namespace is not None and k8s is None:
            exit_with(WRONG_USAGE, "--namespace needs --k8s SELECTOR.")
        return verb(*args, hosts=request, **others)

    for option in (_RAY, _NAMESPACE, _K8S, _SLURM, _HOSTS):
        with_hosts = option(with_hosts)
    return with_hosts


def suggest_option() -> None:
    """Prints which option shows the whole job, if this process sees only a part of it."""
    if proposal := propose_option(os.environ):
        print_message(f"{proposal}.")


def propose_option(environment: Mapping[str, str]) -> str | None:
    """Which option shows the whole job, as a part of a sentence; None unless this process runs in a
    job that has more than this host: of Slurm, an indexed Job, JobSet or Kubeflow, or Ray."""
    job = environment.get("SLURM_JOB_ID", "")
    if job.isdigit():
        from mgpu_doctor.cluster.slurm_nodes import count_nodes

        if (nodes := count_nodes(environment)) > 1:
            return (
                f"this shell is inside Slurm job {job} of {nodes} nodes: add --slurm {job} to see "
                "them all"
            )
    if "RAY_JOB_ID" in environment:  # how many nodes a cluster has is not in the environment
        return (
            "this shell is inside a Ray job: if its cluster has other nodes, add --ray to see them"
        )
    if "KUBERNETES_SERVICE_HOST" in environment:
        pods = environment.get("PET_NNODES", "1")  # "2:4" if it is elastic
        index = environment.get("JOB_COMPLETION_INDEX")
        if pods != "1" or index not in (None, "0"):
            return (
                "this shell is inside one of several pods of a Kubernetes job: where kubectl "
                "works, add --k8s SELECTOR to see them all"
            )
        if index is not None:  # how many it has is not in the environment
            return (
                "this shell is inside a pod of an indexed Kubernetes Job: if it has other pods, "
                "add --k8s SELECTOR to see them, where kubectl works"
            )
    return None
