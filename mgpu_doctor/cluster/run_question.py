"""Asks other hosts whether the `mgpu-doctor run` of a job records its part there, or did until the
job ended. A host may answer although that process was killed: then it reports nothing."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from mgpu_probes.outside.terminal_text import clean

from mgpu_doctor.cluster.engine import MOST_ERROR, Engine, Trouble, start_command
from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.joint_recordings import JOINT, find_links
from mgpu_doctor.recording.layout import END, HOSTS, INFO

SECONDS_TO_ANSWER = 12.0
"""More than ssh takes to find that a host is not there."""
_KILLED = 76
"""Exit code if the process was killed. A choice: ssh, shells and Slurm use others."""
_SCRIPT = (
    "part=; host=$(uname -n); "
    'for folder in {folders}; do here="$folder/{hosts}/$host"; '
    'grep -qsF {key} "$here/{info}" && part=$here; done; '
    '[ -n "$part" ] || exit 0; '
    """pid=$(sed -n 's/^ "doctor_pid": \\([0-9]*\\).*/\\1/p' "$part/{info}"); """
    'touched=$(stat -c %Y "$part/{info}"); '
    'until [ -e "$part/{end}" ] || grep -qs mgpu.doctor "/proc/$pid/cmdline"; do '
    '[ "$(stat -c %Y "$part/{info}")" = "$touched" ] || exit 0; '
    "[ $(( $(date +%s) - touched )) -le {patience} ] || exit {killed}; "
    "sleep 1; done"
)


def make_question(folder: Path, key: str, patience: float) -> str:
    """A command for any shell of a host. It fails if a part of the recording with this key lies
    there, does not end, and is neither of a process that lives nor touched any more. A recording
    that is not found says nothing: other nodes may have theirs elsewhere.

    `folder`: the recording here; `patience`: seconds without a sign of life after which its part
    counts as abandoned."""
    links = f"{shlex.quote(str(find_links(key)))}-*"
    script = _SCRIPT.format(
        folders=links if folder.parent == runs() else shlex.quote(str(folder)),
        hosts=HOSTS,
        info=INFO,
        end=END,
        key=shlex.quote(f'"{JOINT}": {json.dumps(key)}'),
        patience=round(patience),
        killed=_KILLED,
    )
    return shlex.join(("exec", "/bin/sh", "-c", script))


def ask_hosts(
    engine: Engine, hosts: Sequence[str], question: str, seconds: float
) -> dict[str, Trouble | None]:
    """Host -> why nobody there reports; None: somebody does, or did. All are asked at once.
    `seconds`: within which they answer."""
    began = time.monotonic()
    started = {host: start_command(engine.command(host, question)) for host in hosts}
    return {
        host: _await_answer(engine, host, child, began, seconds) for host, child in started.items()
    }


def _await_answer(
    engine: Engine,
    host: str,
    child: subprocess.Popen[bytes] | Trouble,
    began: float,
    seconds: float,
) -> Trouble | None:
    """`began`: when it was asked, on the monotonic clock."""
    if isinstance(child, Trouble):
        return child
    try:
        _, error = child.communicate(timeout=max(0.0, began + seconds - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        # Not silent: the host may be slow, or Slurm's controller.
        reason = f"it did not answer within {seconds:.0f} s"
        return Trouble(reason, f"`{engine.describe_trial(host)}` must work")
    if child.returncode == _KILLED:
        return Trouble("the mgpu-doctor there was killed", "examine what it recorded until then")
    text = clean(error[-MOST_ERROR:].decode("utf-8", "replace"), MOST_ERROR)
    return engine.explain(host, child.returncode, text) if child.returncode else None
