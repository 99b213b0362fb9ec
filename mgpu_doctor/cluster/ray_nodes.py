"""The nodes of a Ray cluster, each through an actor that `ray_relay` starts in a process of its
own."""

from __future__ import annotations

import re
import socket
import sys

import msgspec

from mgpu_doctor.cluster.engine import (
    Listing,
    Trouble,
    find_python_trouble,
    last_line,
    quote,
    require_at_most,
    run_listing,
)
from mgpu_doctor.errors import NOTHING_EXAMINED, WRONG_USAGE, DoctorError

ANY = "auto"
"""The address of the cluster that runs on this machine, or that RAY_ADDRESS names."""
MOST_NODES = 64
"""Each takes a Python process here that has imported Ray. A choice."""
SECONDS_TO_CONNECT = 10.0
RELAY = (sys.executable, "-m", "mgpu_doctor.cluster.ray_relay")
_ADDRESS = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9:/.\[\]_-]{0,254}")
_INSTALL = "install it there: pip install 'mgpu-doctor[ray]', in the version of the cluster"


class Ray:
    """`--ray`: nodes of the cluster at an address. `nodes`: name -> Ray's id of the node."""

    name = "ray"

    def __init__(self, address: str, nodes: dict[str, str]) -> None:
        self._address = address
        self._nodes = nodes

    def command(self, host: str, remote: str) -> list[str]:
        return [*RELAY, self._address, self._nodes[host], remote]

    def describe_trial(self, host: str) -> str:  # noqa: ARG002 - it lists all nodes
        return "ray list nodes"

    def explain(self, host: str, code: int, text: str) -> Trouble:
        if trouble := find_python_trouble(text, code):
            return trouble
        if "ActorUnschedulable" in text or "is not alive" in text or "ActorDied" in text:
            return Trouble("Ray cannot run an actor there", "`ray list nodes` shows its state")
        reason = f"Ray fails with {last_line(text, code)}"
        return Trouble(reason, f"`{self.describe_trial(host)}` must work")


def find_ray_nodes(address: str) -> tuple[tuple[str, ...], Ray]:
    """The living nodes of the cluster at an address, and how to reach them. Raises DoctorError."""
    if not _ADDRESS.fullmatch(address):
        sentence = f"{quote(address)} is not the address of a Ray cluster: give HOST:PORT, or none."
        raise DoctorError(sentence, WRONG_USAGE)
    _require_answer(address)
    shown = run_listing((*RELAY, address), "where Ray is installed")
    if shown.code:
        raise _explain(address, shown)
    try:
        rows = msgspec.json.decode(shown.out, type=list[tuple[str, str]])
    except msgspec.DecodeError:
        rows = []
    if not rows:
        sentence = f"the Ray cluster at {address} shows no living node: try `ray list nodes`."
        raise DoctorError(sentence, NOTHING_EXAMINED)
    require_at_most(MOST_NODES, len(rows), "Ray")
    names = [name for _, name in rows]
    nodes = {name if names.count(name) == 1 else f"{name}-{node[:8]}": node for node, name in rows}
    return tuple(nodes), Ray(address, nodes)


def _require_answer(address: str) -> None:
    """Raises DoctorError if nobody listens at HOST:PORT: Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if "/" in host or not host or not port.isdigit() or int(port) > 65535:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except OSError as error:
        reason = error.strerror or str(error)
        sentence = f"no Ray answers at {address} ({reason}): `ray status` shows the address."
        raise DoctorError(sentence, NOTHING_EXAMINED) from None


def _explain(address: str, shown: Listing) -> DoctorError:
    if "there is no Ray in" in shown.error:
        sentence = f"{last_line(shown.error, 1)[1:-1]}: {_INSTALL}."
    elif "ConnectionError" in shown.error and address == ANY:
        sentence = "no Ray runs on this machine: name the cluster, as --ray HOST:6379."
    elif "ersion mismatch" in shown.error:
        sentence = f"the cluster at {address} has another version of Ray or Python: {_INSTALL}."
    else:
        error = last_line(shown.error, shown.code)
        sentence = f"Ray at {address} does not answer: {error}: `ray status` must work."
    return DoctorError(sentence, NOTHING_EXAMINED)
