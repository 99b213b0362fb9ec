"""Why a process cannot be read, and the remedy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from mgpu_probes.outside.stacks import ptrace_permission

from tests.support.other_user import NOBODY, as_nobody

ALL = (1 << 41) - 1
NO_PTRACE = ALL & ~(1 << ptrace_permission.CAP_SYS_PTRACE)


@dataclass(frozen=True)
class Asked:
    """Who asks, whom, and on what machine."""

    euid: int = 1000
    effective: int = 0
    permitted: int = 0
    owner: int = 1000
    its_permitted: int = 0
    scope: str | None = None
    undumpable: bool = False


@pytest.mark.parametrize(
    ("asked", "reason", "remedy"),
    [
        (Asked(euid=0, effective=NO_PTRACE), "lacks CAP_SYS_PTRACE", "--cap-add=SYS_PTRACE"),
        (Asked(owner=0), "belongs to root", "as root"),
        (Asked(owner=4_000_000), "belongs to uid 4000000", "as root or as uid 4000000"),
        (Asked(scope="1"), "only a process's parents", "sudo sysctl kernel.yama.ptrace_scope=0"),
        (Asked(scope="2"), "only root", "as root"),
        (Asked(euid=0, effective=ALL, scope="3"), "until it is restarted", "mgpu-doctor run"),
        (Asked(scope="1", undumpable=True), "PR_SET_DUMPABLE", "as root"),
        (Asked(its_permitted=1 << 12), "capabilities that you lack", "as root"),
        (Asked(scope="0"), "security policy", "seccomp=unconfined"),
        (Asked(euid=0, effective=ALL), "security policy", "seccomp=unconfined"),
        (Asked(scope="nonsense"), "security policy", "seccomp=unconfined"),
    ],
)
def test_each_reason_has_its_remedy(
    asked: Asked, reason: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, uid, effective, permitted in (
        ("self", asked.euid, asked.effective, asked.permitted),
        ("7", asked.owner, 0, asked.its_permitted),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "status").write_text(
            f"Name:\ta\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"CapPrm:\t{permitted:016x}\nCapEff:\t{effective:016x}\n"
        )
    if asked.scope is not None:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(f"{asked.scope}\n")
    owner = 0 if asked.undumpable else asked.euid
    monkeypatch.setattr(ptrace_permission, "_folder_owner", lambda _: owner)
    told = ptrace_permission.explain_denial(7, tmp_path, asked.euid)
    assert reason in told[0]
    assert remedy in told[1]


def test_another_users_process_on_this_machine() -> None:
    pid = 1 if os.geteuid() else os.getpid()
    me = ptrace_permission.name_user(NOBODY if os.geteuid() == 0 else os.geteuid())
    reason, remedy = as_nobody(lambda: ptrace_permission.explain_denial(pid))
    assert reason == f"it belongs to root, and you are {me}"
    assert remedy == "run `mgpu-doctor` as root"


def test_nothing_known_is_survived(tmp_path: Path) -> None:
    reason, remedy = ptrace_permission.explain_denial(7, tmp_path, 1000)
    assert reason
    assert remedy
