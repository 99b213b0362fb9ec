"""Checks of what the kernel shows: processes, control groups, its log and the clock."""

from __future__ import annotations

import ctypes

from mgpu_probes.outside import cgroups
from mgpu_probes.outside.kernel_log import KernelLog, sees_own_pids

from mgpu_doctor.check.check_result import Check, CheckedMachine, Level, Result
from mgpu_doctor.formatting import format_bytes

CAP_SYS_PTRACE = 19
_OPEN = ("0", "off")
"""Values of hidepid that hide nothing: proc(5)."""
_TIME_ERROR = 5
"""What adjtimex(2) returns while the clock is not synchronized."""
_TIMEX_BYTES = 512
"""More than the structure of adjtimex(2) needs on any machine."""


def check_processes(machine: CheckedMachine) -> Result:
    """Whether the processes of other users and of other containers are visible."""
    hidden = _hidepid(machine.read_text("proc/self/mountinfo") or "")
    if hidden not in _OPEN and not machine.has_capability(CAP_SYS_PTRACE):
        return Result(
            Level.WARN,
            f"other users' processes are hidden (/proc is mounted with hidepid={hidden})",
            "run `mgpu-doctor` as the job's user or as root",
        )
    if not sees_own_pids(machine.root):
        return Result(
            Level.NOTE, "only those of this container; other jobs on the host are not visible"
        )
    return Result(Level.PASS, "all processes of this machine are visible")


def _hidepid(mounts: str) -> str:
    """The hidepid of the last mount on /proc, which hides earlier ones."""
    hidden = "0"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split(" ")[4:5] == ["/proc"]:
            options = rest.rpartition(" ")[2].split(",")
            values = [
                option.partition("=")[2] for option in options if option.startswith("hidepid=")
            ]
            hidden = values[0] if values else "0"
    return hidden


def check_control_groups(machine: CheckedMachine) -> Result:
    """Whether the limits of memory and CPU time, and kills for memory, can be read."""
    groups = cgroups.find_memory_groups("self", machine.root)
    if not groups and (machine.root / "sys/fs/cgroup/cgroup.controllers").exists():
        return Result(Level.PASS, "version 2; no limits (this process is in the root group)")
    if not groups:
        return Result(
            Level.WARN,
            "not visible: memory limits and memory kills remain unknown",
            "mount /sys/fs/cgroup into the container (`-v /sys/fs/cgroup:/sys/fs/cgroup:ro`)",
        )
    version = next(iter(groups.values()))[0]
    limit = cgroups.find_memory_limit(machine.root)
    limited = limit is not None and limit.limit < cgroups.NO_LIMIT
    limits = f"memory limit {format_bytes(limit.limit)}" if limit and limited else "no memory limit"
    quotas = cgroups.find_cpu_quotas(machine.root)
    if quotas:
        limits += f", at most {min(quota.cores for quota in quotas):g} cores"
    counted = any(
        cgroups.read_memory_counters(*group)["killed"] is not None for group in groups.values()
    )
    if not counted:
        limits += "; memory kills are not counted"
    return Result(Level.PASS, f"version {version}; {limits}")


def check_kernel_log(machine: CheckedMachine) -> Result:
    """Whether the kernel log, with its memory kills and GPU errors (Xid), can be read."""
    opened = KernelLog(machine.root / "dev/kmsg")
    try:
        if opened.trouble is None:
            return Result(Level.PASS, "readable: shows memory kills and GPU errors")
    finally:
        opened.close()
    message = (
        "cannot be read: memory kills are known only from counters, GPU errors only from the driver"
    )
    restricted = machine.read_text("proc/sys/kernel/dmesg_restrict") == "1"
    if not (machine.root / "dev/kmsg").exists():
        return Result(Level.WARN, message, "in a container: `--device=/dev/kmsg --cap-add=SYSLOG`")
    if restricted:
        return Result(Level.WARN, message, "`sudo sysctl kernel.dmesg_restrict=0`, or run as root")
    return Result(Level.WARN, message, "run as root, or join the group that can read /dev/kmsg")


def check_clock(machine: CheckedMachine) -> Result:
    """Whether the clock is synchronized: ranks of several hosts are compared by their clocks."""
    del machine
    state = _clock_state()
    if state is None:
        return Result(Level.NOTE, "this kernel does not report whether the clock is synchronized")
    if state == _TIME_ERROR:
        return Result(
            Level.WARN,
            "not synchronized: times of several hosts cannot be compared",
            "start chrony or systemd-timesyncd (on the host if this is a container)",
        )
    return Result(Level.PASS, "synchronized")


def _clock_state() -> int | None:
    """What adjtimex(2) returns when nothing is set; None if it fails."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return int(state) if state >= 0 else None


CHECKS = (
    Check("processes", "processes", check_processes),
    Check("cgroup", "control groups", check_control_groups),
    Check("kernel-log", "kernel log", check_kernel_log),
    Check("clock", "clock", check_clock),
)
