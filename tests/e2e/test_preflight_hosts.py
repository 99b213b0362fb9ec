"""Preflight of three hosts that a real ssh reaches: one with a CPU quota, one with a slow link."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import alone
from tests.support.ssh_hosts import GROUPS, SshHosts, can_have_namespaces, cpu_quota, ssh_hosts

pytestmark = pytest.mark.slow

NAMES = ("node-a", "node-b", "node-c")


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
