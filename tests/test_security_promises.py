"""What docs/security.md promises of the whole code: that its tests exist, what may use the network,
and that no GPU is changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "security.md"
NETWORK = {"socket", "ssl", "http", "urllib", "urllib3", "requests", "httpx", "aiohttp"}
MAY_USE_IT = {
    "mgpu_doctor/cluster/ray_nodes.py",  # whether the cluster named with --ray answers, over TCP
    "mgpu_doctor/export/access.py",
    "mgpu_doctor/export/http_server.py",
    "mgpu_doctor/export/http_request.py",
    "mgpu_doctor/launch/job_console.py",  # a socketpair to the job
    "mgpu_doctor/launch/job_nodes.py",  # looks up the name at which nodes meet
    "mgpu_doctor/launch/private_view.py",  # sets up loopback in a network namespace of its own
    "mgpu_doctor/live/watch_process.py",  # the same to a process that it starts
    "mgpu_doctor/plan/fork_server.py",  # the same to its children, as in the next three
    "mgpu_doctor/plan/tracing/tracing_server.py",
    "probes/mgpu_probes/inprocess/worker_server.py",  # a unix socket, as in the next three
    "probes/mgpu_probes/outside/flight/live_recorders.py",
    "probes/mgpu_probes/outside/traces/kineto_daemon.py",
    "probes/mgpu_probes/outside/stacks/worker_socket.py",
    "probes/mgpu_probes/outside/flight/nccl_ras.py",  # NCCL's RAS, over TCP
    "probes/mgpu_probes/outside/preflight/socket_link.py",  # `preflight --pairs`, over TCP
    "probes/mgpu_probes/outside/tcp_links.py",  # asks the kernel about sockets (sock_diag)
}
"""The files that import what reaches other processes or machines."""
MAY_IMPORT_IT = re.compile(rf"\b(?:import|from)\b.*\b(?:{'|'.join(NETWORK)})\b")
"""Matches in every file that imports one of them: the others need not be parsed."""
SETTERS = re.compile(
    r"nvml(?:Device|Unit|System|Gpu\w*?|Vgpu\w*?)(?:Set|Reset|Clear|Freeze|Modify)"
)


def sources() -> Iterator[tuple[str, str]]:
    for folder in ("mgpu_doctor", "probes"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def imported(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_every_promise_names_a_test_that_is_there() -> None:
    page = PAGE.read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(named) == page.count("`tests/") > 100
    for name in {file for file, _ in named}:
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / name).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        assert {test for file, test in named if file == name} <= functions, name


def test_the_network_is_used_where_it_is_documented_and_nowhere_else() -> None:
    likely = ((name, source) for name, source in sources() if MAY_IMPORT_IT.search(source))
    assert {name for name, source in likely if imported(source) & NETWORK} == MAY_USE_IT


def test_connections_over_tcp_go_to_nccl_to_ray_and_between_tested_hosts() -> None:
    found = {name for name, source in sources() if "create_connection" in source}
    link = "probes/mgpu_probes/outside/preflight/socket_link.py"
    named = ("probes/mgpu_probes/outside/flight/nccl_ras.py", "mgpu_doctor/cluster/ray_nodes.py")
    assert found == {*named, link}
    for name, source in sources():
        made = re.findall(r"socket\.socket\(([^)]*)\)", source)
        others = [words for words in made if not re.search("AF_UNIX|AF_NETLINK|fileno=", words)]
        without = "mgpu_doctor/launch/private_view.py"  # it never connects: see MAY_USE_IT
        is_known = name.startswith("mgpu_doctor/export/") or name in (without, link)
        assert not others or is_known, name


def test_no_setting_of_a_gpu_is_ever_changed() -> None:
    assert SETTERS.search("pynvml.nvmlDeviceSetPowerManagementLimit")
    assert [name for name, source in sources() if SETTERS.search(source)] == []
