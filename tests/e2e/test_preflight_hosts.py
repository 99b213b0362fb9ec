"""Preflight of three hosts that a real ssh reaches: one with a CPU quota, one with a slow link."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import alone, until
from tests.support.ssh_hosts import SshHosts, can_have_namespaces, ssh_hosts

pytestmark = pytest.mark.slow

NAMES = ("node-a", "node-b", "node-c")
GROUPS = Path("/sys/fs/cgroup/cpu")


def preflight(hosts: SshHosts, *names: str) -> tuple[int, dict[str, Any]]:
    words = ("preflight", "--hosts", ",".join(names), "--pairs", "--python", "none", "--json")
    done = subprocess.run(
        (sys.executable, "-m", "mgpu_doctor", *words),
        env=hosts.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def off(found: dict[str, Any]) -> set[tuple[str, str]]:
    """Test and host of what is wrong."""
    checks = [check for check in found["checks"] if check["level"] in ("warn", "fail")]
    return {(check["id"], host) for check in checks for host in check["hosts"] or [""]}


@contextmanager
def cpu_quota(hosts: SshHosts, name: str, cores: float) -> Iterator[None]:
    """Limits all that runs on a host from now on."""
    group = GROUPS / f"preflight-{hosts.server_pid(name)}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
        (group / "cgroup.procs").write_text(str(hosts.server_pid(name)))
        hosts.run(name, "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu")
        hosts.run(name, "mount -t cgroup -o cpu none /sys/fs/cgroup/cpu")
        yield
    finally:
        hosts.stop()
        until(lambda: not (group / "cgroup.procs").read_text(), 60)
        group.rmdir()


def test_a_slow_host_and_a_slow_link_are_named(tmp_path: Path) -> None:
    if not can_have_namespaces():
        pytest.skip("namespaces with networks of their own need root")
    has_quotas = GROUPS.is_dir()
    with alone(), ssh_hosts(tmp_path, *NAMES) as hosts:
        hosts.limit_link("node-c", "10mbit")
        with cpu_quota(hosts, "node-b", 0.3) if has_quotas else nullcontext():
            code, found = preflight(hosts, *NAMES, "refused")
            left = [hosts.run(name, "ps", "axww") for name in NAMES]
    assert code == 1
    few = {("cores", "node-b")} if has_quotas else set()
    assert off(found) == {*few, ("links", "node-c"), ("hosts", "refused")}
    if has_quotas:
        assert found["hosts"][1]["cores"] == 0.3
    speeds = {(link["source"], link["target"]): link for link in found["links"]}
    assert len(speeds) == 3
    assert min(link[way] for link in found["links"] for way in ("there", "back")) < 2e6
    assert not [text for text in left if "mgpu-doctor agent" in text]
