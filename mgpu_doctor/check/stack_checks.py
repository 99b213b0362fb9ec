"""Checks whether the stacks of processes can be read: py-spy and the permission to trace."""

from __future__ import annotations

import re
import subprocess
import sys
import time

from mgpu_probes.outside.stacks import ptrace_permission, pyspy_stacks, stack_threads

from mgpu_doctor.check.check_result import Check, CheckedMachine, Level, Result

OLDEST = (0, 4)
"""The first py-spy that reads Python 3.13."""
PATIENCE = 10.0
"""Seconds in which a Python process must have started and py-spy must have read its stack."""
_WAITS = "print(flush=True); input()"


def check_pyspy(machine: CheckedMachine) -> Result:
    """Whether py-spy, which reads stacks, is installed and recent enough."""
    del machine
    program = pyspy_stacks.find_pyspy()
    install = f"{sys.executable} -m pip install --upgrade py-spy"
    if program is None:
        return Result(
            Level.FAIL, "not installed: the stacks of running jobs cannot be read", install
        )
    try:
        ran = subprocess.run(
            [program, "--version"], check=False, capture_output=True, timeout=PATIENCE, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Result(Level.FAIL, f"{program} does not run: {error}", install)
    version = re.search(r"(\d+)\.(\d+)[\w.]*", ran.stdout)
    if version is None:
        return Result(Level.FAIL, f"{program} does not report its version", install)
    if (int(version[1]), int(version[2])) < OLDEST:
        return Result(Level.WARN, f"py-spy {version[0]} is too old for Python 3.13", install)
    return Result(Level.PASS, f"py-spy {version[0]}")


def check_tracing(machine: CheckedMachine) -> Result:
    """Whether py-spy can read the stack of a process that, like a job, is not its child."""
    if pyspy_stacks.find_pyspy() is None:
        return Result(Level.NOTE, "not tested: py-spy is not installed")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WAITS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            began = time.monotonic()
            outcome = pyspy_stacks.read_stack(child.pid, began + PATIENCE)
            took = time.monotonic() - began
            return _judge(outcome, took, child.pid, machine)
        finally:
            child.kill()


def _judge(
    outcome: stack_threads.Json | pyspy_stacks.Failure,
    took: float,
    pid: int,
    machine: CheckedMachine,
) -> Result:
    if not isinstance(outcome, pyspy_stacks.Failure):
        return Result(
            Level.PASS, f"readable: reading the stack of a process took {took * 1e3:.0f} ms"
        )
    if outcome.kind is pyspy_stacks.Kind.DENIED:
        reason, remedy = ptrace_permission.explain_denial(pid, machine.root / "proc", machine.euid)
        return Result(Level.FAIL, f"stacks cannot be read: {reason}", remedy)
    message = f"stacks cannot be read: {outcome.kind.value}"
    message += f" ({outcome.text})" if outcome.text else ""
    remedy = "run the check again when the machine is less busy, or update py-spy"
    return Result(Level.FAIL, message, remedy)


def check_other_users(machine: CheckedMachine) -> Result:
    """Whether the stacks of other users' processes can be read."""
    if machine.has_capability(ptrace_permission.CAP_SYS_PTRACE):
        return Result(Level.PASS, "those of every user (CAP_SYS_PTRACE)")
    if machine.euid == 0:
        return Result(
            Level.WARN,
            "only those of root: CAP_SYS_PTRACE is missing, as is usual in a container",
            "start the container with `--cap-add=SYS_PTRACE`, or run `mgpu-doctor` on its host",
        )
    user = ptrace_permission.name_user(machine.euid)
    return Result(Level.NOTE, f"only those of {user}; root can read those of every user")


CHECKS = (
    Check("py-spy", "py-spy", check_pyspy),
    Check("tracing", "stacks", check_tracing),
    Check("others", "whose stacks", check_other_users),
)
