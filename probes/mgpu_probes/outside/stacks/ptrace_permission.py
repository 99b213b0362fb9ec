"""Why the system does not let us read a process's memory, and what would change that.

The kernel's test, in the order of ptrace(2) "Ptrace access mode checking" and its document
`Yama.rst`: with CAP_SYS_PTRACE all may be read; else the user must be the same, the process must
be dumpable and hold no capability that we lack, and Yama may restrict reading to descendants."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from mgpu_probes.outside.processes import PROC

CAP_SYS_PTRACE = 19
_RUN = "start the job with `mgpu-doctor run -- COMMAND`"


def explain_denial(pid: int, proc: Path = PROC, euid: int | None = None) -> tuple[str, str]:
    """Reason and remedy for a process that could not be read. `euid`: the reader's user."""
    me = os.geteuid() if euid is None else euid
    mine, its = _status(proc / "self"), _status(proc / str(pid))
    capable = bool(_hex(mine, "CapEff") >> CAP_SYS_PTRACE & 1)
    owner, scope = _owner(its), _scope(proc)
    cases = (
        (
            not capable and me == 0,
            "this root may not trace other processes: it lacks CAP_SYS_PTRACE, as in a container",
            "start the container with `--cap-add=SYS_PTRACE` (Kubernetes: securityContext."
            "capabilities.add: [SYS_PTRACE]), or run `mgpu-doctor` on its host",
        ),
        (
            not capable and owner not in (None, me),
            f"it belongs to {name_user(owner)}, and you are {name_user(me)}",
            "run `mgpu-doctor` as root" + (f" or as {name_user(owner)}" if owner else ""),
        ),
        (
            scope == 3,
            "this system forbids all tracing until it is restarted (kernel.yama.ptrace_scope is 3)",
            f"{_RUN}, or boot with kernel.yama.ptrace_scope=1",
        ),
        (
            not capable and scope == 2,
            "only root may trace processes here (kernel.yama.ptrace_scope is 2)",
            f"run `mgpu-doctor` as root, or {_RUN}",
        ),
        (
            not capable and _folder_owner(proc / str(pid)) not in (None, me),
            "it has made itself unreadable (PR_SET_DUMPABLE is 0), or its program has privileges",
            f"run `mgpu-doctor` as root, or {_RUN}",
        ),
        (
            not capable and _hex(its, "CapPrm") & ~_hex(mine, "CapPrm") != 0,
            "it holds capabilities that you lack",
            f"run `mgpu-doctor` as root, or {_RUN}",
        ),
        (
            not capable and scope == 1,
            "only a process's parents may trace it here (kernel.yama.ptrace_scope is 1)",
            f"`sudo sysctl kernel.yama.ptrace_scope=0`, or run `mgpu-doctor` as root, or {_RUN}",
        ),
        (
            True,
            "a security policy forbids it (seccomp, AppArmor, SELinux, or another user namespace)",
            "in a container: `--cap-add=SYS_PTRACE --security-opt seccomp=unconfined`; or run "
            "`mgpu-doctor` on its host as root",
        ),
    )
    return next((reason, remedy) for holds, reason, remedy in cases if holds)


def name_user(uid: int | None) -> str:
    """The user's name, or `uid N` if the machine knows no name."""
    if uid is None:
        return "another user"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _status(folder: Path) -> dict[str, str]:
    try:
        text = (folder / "status").read_text("utf-8", "replace")
    except OSError:
        return {}
    # Not splitlines(): a process's name may contain characters that it treats as line ends.
    pairs = (line.partition(":") for line in text.split("\n"))
    return {key: value.strip() for key, _, value in pairs}


def _hex(status: dict[str, str], key: str) -> int:
    try:
        return int(status.get(key, ""), 16)
    except ValueError:
        return 0


def _owner(status: dict[str, str]) -> int | None:
    first = status.get("Uid", "").split()[:1]
    return int(first[0]) if first and first[0].isdigit() else None


def _folder_owner(folder: Path) -> int | None:
    """The owner of a folder in /proc; root if the process is not dumpable: proc(5)."""
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _scope(proc: Path) -> int | None:
    try:
        text = (proc / "sys/kernel/yama/ptrace_scope").read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
