"""The program that is sent to a host: the agent and what it imports."""

from __future__ import annotations

import json
import shlex
import zlib
from functools import cache
from pathlib import Path

import mgpu_probes

PROBES = Path(mgpu_probes.__file__).parent
PARTS = ("__init__.py", "inprocess/__init__.py", "inprocess/layout.py", "outside/*.py")
PACKAGES = ("outside/jobs/*.py", "outside/node/*.py", "outside/stacks/*.py")
JOBS_AGENT = "mgpu_probes.outside.node.node_agent"
PREFLIGHT_AGENT = "mgpu_probes.outside.preflight.preflight_agent"
PREFLIGHT_PACKAGES = ("outside/node/*.py", "outside/preflight/*.py")
LOADER = PROBES / "outside/node/agent_loader.py"
NEWEST, OLDEST = 14, 10
"""Minor versions of Python 3 that a host may have under a name of its own."""
TOO_OLD = "mgpu-doctor: this host has Python %d.%d"
"""Begins the agent's only line on standard error if no Python is new enough."""
_BOOTSTRAP = f"""\
import os, sys
if sys.version_info < (3, {OLDEST}):
    sys.exit("{TOO_OLD}" % sys.version_info[:2])
def read(size):
    text = b""
    while len(text) < size:
        part = os.read(0, size - len(text))
        if not part:
            sys.exit(0)
        text += part
    return text
exec(compile(read(int(read(12))), "mgpu-doctor agent", "exec"))
"""
_SHELL = (
    'for python in python3 {names}; do "$python" -c '
    '"import sys; sys.exit(sys.version_info < (3, {oldest}))" 2>/dev/null && '
    'exec "$python" -I -S -c "$0" "$@"; done; exec python3 -I -S -c "$0" "$@"'
)


def remote_command() -> str:
    """A command for any shell of a host, which starts the agent: it reads `program` from its
    standard input. If there is no Python that is new enough, it says so on standard error. One
    line: a csh takes no more in quotes."""
    names = " ".join(f"python3.{minor}" for minor in range(NEWEST, OLDEST - 1, -1))
    script = _SHELL.format(names=names, oldest=OLDEST)
    return shlex.join(("exec", "/bin/sh", "-c", script, f"exec({_BOOTSTRAP!r})"))


@cache
def program(agent: str = JOBS_AGENT) -> bytes:
    """What the agent's standard input begins with: a text of Python and the modules that it
    imports, each after its length in 12 digits. `read` is the bootstrap's."""
    call = f"run_agent(read(int(read(12))), {agent!r})"
    text = f"{LOADER.read_text('utf-8')}\n\n{call}\n".encode()
    packages = PACKAGES if agent == JOBS_AGENT else PREFLIGHT_PACKAGES
    packed = zlib.compress(json.dumps(_read_modules(packages)).encode(), 9)
    return b"%012d%s%012d%s" % (len(text), text, len(packed), packed)


def _read_modules(packages: tuple[str, ...]) -> dict[str, str]:
    """Name -> text of each module that the agent may import."""
    texts = {}
    for pattern in (*PARTS, *packages):
        for path in sorted(PROBES.glob(pattern)):
            parts = path.relative_to(PROBES.parent).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            texts[name] = path.read_text("utf-8")
    return texts
