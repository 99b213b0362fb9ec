"""Checks whether stacks of processes can be read: py-spy, and the right to trace."""

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
"""Seconds for a Python to start and to be read."""
_WAITS = "print(flush=True); input()"


def py_spy(machine: CheckedMachine) -> Result:
    """The program that reads them, and its version."""
    del machine
    program = pyspy_stacks.find_pyspy()
    install = f"{sys.executable} -m pip install --upgrade py-spy"
    if program is None:
        return Result(Level.FAIL, "py-spy is not installed: no stacks of running jobs", install)
    try:
        ran = subprocess.run(
            [program, "--version"], check=False, capture_output=True, timeout=PATIENCE, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Result(Level.FAIL, f"{program} does not run: {error}", install)
    found = re.search(r"(\d+)\.(\d+)[\w.]*", ran.stdout)
    if found is None:
        return Result(Level.FAIL, f"{program} does not tell its version", install)
    if (int(found[1]), int(found[2])) < OLDEST:
        return Result(Level.WARN, f"py-spy {found[0]} is too old for Python 3.13", install)
    return Result(Level.PASS, f"py-spy {found[0]}")


def tracing(machine: CheckedMachine) -> Result:
    """A real try, on a Python that is started for it: no child of py-spy, as jobs are not."""
    if pyspy_stacks.find_pyspy() is None:
        return Result(Level.NOTE, "not tried: py-spy is not installed")
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
            found = pyspy_stacks.read_stack(child.pid, began + PATIENCE)
            took = time.monotonic() - began
            return _judged(found, took, child.pid, machine)
        finally:
            child.kill()


def _judged(
    found: stack_threads.Json | pyspy_stacks.Failure, took: float, pid: int, machine: CheckedMachine
) -> Result:
    if not isinstance(found, pyspy_stacks.Failure):
        return Result(Level.PASS, f"the stack of a process was read in {took * 1e3:.0f} ms")
    if found.kind is pyspy_stacks.Kind.DENIED:
        reason, remedy = ptrace_permission.explain_denial(pid, machine.root / "proc", machine.euid)
        return Result(Level.FAIL, f"stacks cannot be read: {reason}", remedy)
    said = f"stacks cannot be read: {found.kind.value}"
    said += f" ({found.text})" if found.text else ""
    return Result(Level.FAIL, said, "run it again when the machine is less busy, or update py-spy")


def others(machine: CheckedMachine) -> Result:
    """Whose processes may be read."""
    if machine.may(ptrace_permission.CAP_SYS_PTRACE):
        return Result(Level.PASS, "every user's (CAP_SYS_PTRACE)")
    if machine.euid == 0:
        return Result(
            Level.WARN,
            "root's alone: this root lacks CAP_SYS_PTRACE, as in a container",
            "start the container with `--cap-add=SYS_PTRACE`, or run `mgpu-doctor` on its host",
        )
    return Result(
        Level.NOTE, f"{ptrace_permission.name_user(machine.euid)}'s alone; as root every user's"
    )


CHECKS = (
    Check("py-spy", "py-spy", py_spy),
    Check("tracing", "stacks", tracing),
    Check("others", "whose stacks", others),
)
