"""What the kernel shows: processes, control groups, its log, the time."""

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
"""What adjtimex(2) answers while nothing keeps the clock right."""
_TIMEX_BYTES = 512
"""More than the structure of adjtimex(2) takes on any machine."""


def processes(machine: CheckedMachine) -> Result:
    """Whether other users' processes are listed at all, and those of other containers."""
    hidden = _hidepid(machine.text("proc/self/mountinfo") or "")
    if hidden not in _OPEN and not machine.may(CAP_SYS_PTRACE):
        return Result(
            Level.WARN,
            f"other users' are hidden (/proc is mounted with hidepid={hidden})",
            "run `mgpu-doctor` as the job's user or as root",
        )
    if not sees_own_pids(machine.root):
        return Result(Level.NOTE, "those of this container; of the host's jobs nothing is seen")
    return Result(Level.PASS, "all of this machine's are listed")


def _hidepid(mounts: str) -> str:
    """Of the last mount on /proc: what hides the ones before it."""
    found = "0"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split(" ")[4:5] == ["/proc"]:
            options = rest.rpartition(" ")[2].split(",")
            values = [
                option.partition("=")[2] for option in options if option.startswith("hidepid=")
            ]
            found = values[0] if values else "0"
    return found


def control_groups(machine: CheckedMachine) -> Result:
    """Where a job's memory and CPU time are limited, and what was killed for it."""
    groups = cgroups.find_memory_groups("self", machine.root)
    if not groups and (machine.root / "sys/fs/cgroup/cgroup.controllers").exists():
        return Result(Level.PASS, "version 2; no limits: this process is in the outermost group")
    if not groups:
        return Result(
            Level.WARN,
            "not to be seen: limits of memory and kills for it stay unknown",
            "mount /sys/fs/cgroup into the container (`-v /sys/fs/cgroup:/sys/fs/cgroup:ro`)",
        )
    version = next(iter(groups.values()))[0]
    limit = cgroups.find_memory_limit(machine.root)
    limited = limit is not None and limit.limit < cgroups.NO_LIMIT
    told = f"memory limit {format_bytes(limit.limit)}" if limit and limited else "no memory limit"
    quotas = cgroups.find_cpu_quotas(machine.root)
    if quotas:
        told += f", at most {min(quota.cores for quota in quotas):g} cores"
    counted = any(
        cgroups.read_memory_counters(*group)["killed"] is not None for group in groups.values()
    )
    if not counted:
        told += "; it does not count kills"
    return Result(Level.PASS, f"version {version}; {told}")


def log(machine: CheckedMachine) -> Result:
    """The kernel tells there whom it killed for want of memory, and GPUs' errors (Xid)."""
    opened = KernelLog(machine.root / "dev/kmsg")
    try:
        if opened.trouble is None:
            return Result(Level.PASS, "can be read: memory kills and GPU errors are seen")
    finally:
        opened.close()
    said = "cannot be read: memory kills are told by counters alone, GPU errors by the driver alone"
    restricted = machine.text("proc/sys/kernel/dmesg_restrict") == "1"
    if not (machine.root / "dev/kmsg").exists():
        return Result(Level.WARN, said, "in a container: `--device=/dev/kmsg --cap-add=SYSLOG`")
    if restricted:
        return Result(Level.WARN, said, "`sudo sysctl kernel.dmesg_restrict=0`, or run as root")
    return Result(Level.WARN, said, "run as root, or join the group that may read /dev/kmsg")


def clock(machine: CheckedMachine) -> Result:
    """Ranks of several hosts are compared by their clocks."""
    del machine
    state = _clock_state()
    if state is None:
        return Result(Level.NOTE, "this kernel does not tell whether it is kept right")
    if state == _TIME_ERROR:
        return Result(
            Level.WARN,
            "nothing keeps it right: times of several hosts will not fit together",
            "start chrony or systemd-timesyncd, on the host if this is a container",
        )
    return Result(Level.PASS, "kept right")


def _clock_state() -> int | None:
    """What adjtimex(2) answers when it is only asked."""
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return int(answer) if answer >= 0 else None


CHECKS = (
    Check("processes", "processes", processes),
    Check("cgroup", "control groups", control_groups),
    Check("kernel-log", "kernel log", log),
    Check("clock", "clock", clock),
)
