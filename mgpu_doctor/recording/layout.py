"""Names of everything inside a recording. `docs/recording.md` describes it.

RECORDING/
  recording.json            what was started, when, where (RecordingInfo)
  end.json                  how it ended (EndInfo); absent while it runs or when `run` was killed
  verdict.json              the diagnosis at its end in a few words, for lists
  trials.json               what `treat` found for this job (docs/treat.schema.json), the newest
                            session first
  hosts/HOST/
    boxes/HOST.PID.ATTEMPT.box   one black box per rank
    exits.jsonl             how processes ended, as seen from outside (ExitInfo a line)
    host.jsonl              host samples
    devices.jsonl           device samples
    looks.jsonl             snapshots of the processes and their stacks, from outside
    flight/PID.json         collectives of a rank, from torch's flight recorder
    ending.json             evidence of failures: out of memory, full disks, limits
    console/                copies of what this host printed, in a GATHERED recording
    tasks/N/                recording.json, end.json, ending.json and console of the other tasks of
                            a Slurm step on this host, from 1
  console/                  bounded copies of what the job printed
    stdout.log  stderr.log  or console.log where both went to one place;
                            NAME.1 is the newer part once NAME is full
  traces/                   of ranks on several hosts, by `trace --hosts`
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

SCHEMA = "mgpu-doctor/recording/1"
INFO = "recording.json"
END = "end.json"
VERDICT = "verdict.json"
VERDICT_SCHEMA = "mgpu-doctor/verdict/1"
TRIALS = "trials.json"
HOSTS = "hosts"
TASKS = "tasks"
BOXES = "boxes"
EXITS = "exits.jsonl"
HOST_SAMPLES = "host.jsonl"
DEVICE_SAMPLES = "devices.jsonl"
LOOKS = "looks.jsonl"
FLIGHT = "flight"
ENDING = "ending.json"
CONSOLE = "console"
TRACES = "traces"

WATCH = "watch"
"""The kind of a recording of a machine without a job: `top --record`."""

GATHERED = "hosts"
"""The kind of a recording that `--hosts` gathers from several hosts. Some may be missing in it."""


class RecordingInfo(TypedDict, total=False):
    """`recording.json`. Times are seconds since the epoch."""

    schema: str
    id: str
    kind: str  # "run", "train", WATCH or GATHERED
    command: list[str]
    cwd: str
    host: str
    started: float
    doctor_pid: int
    doctor_version: str
    job_pid: int  # of GATHERED, the reader: the job's first process is on another host
    job_start_ticks: int  # /proc/PID/stat field 22, against pid reuse
    boot_id: str | None  # the machine's boot: pids and ticks are only valid within it
    doctor_start_ticks: int | None
    boxes: str  # where the live boxes are, when they cannot be in this folder
    boxes_key: str  # also stored in that folder (recording.live_boxes)
    no_probe: str  # why the probe was not injected
    console_file: dict[str, str]  # stream -> path, where the job writes straight into a file;
    # for people: readers never open it, what it holds is copied into the recording
    treated: dict[str, object]  # treatments that `run --treat` applied, and their proof
    asked_hosts: list[dict[str, str | None]]  # of GATHERED: name, node, trouble and remedy of each
    # host that was asked, as case.model.AskedHost
    probe: bool  # whether the in-process probe was injected


class EndInfo(TypedDict, total=False):
    """`end.json`. `signal` is the number that ended the job's first process, else null."""

    exit_code: int | None
    signal: int | None
    ended: float
    asked: str | None  # signal name when the user or the system asked the job to end ("SIGINT", …)
    doctor_cpu_seconds: float


class ExitInfo(TypedDict, total=False):
    """A line of `exits.jsonl`."""

    pid: int
    start_ticks: int
    exit_code: int | None
    signal: int | None
    at: float
    how: str  # "wait" (our child), "pidfd" or "zombie" (seen from outside)


def boxes(recording: Path, host: str) -> Path:
    """Returns the folder of a host's black boxes."""
    return recording / HOSTS / host / BOXES
