"""The agent of `preflight`: runs the tests that its reader asks for, until the channel ends.

It runs from memory. Of files it makes a temporary one without a name; of ports it opens those of a
link test, for a minute at most, and of a collective."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mgpu_probes.outside import processes
from mgpu_probes.outside.node.agent_channel import AgentChannel
from mgpu_probes.outside.node.channel_frames import MAGIC, pack_frame
from mgpu_probes.outside.preflight import host_speed, socket_link, torch_speed

Json = dict[str, Any]

MOST_LINE = 1 << 20
SILENCE = 300.0
"""Seconds without a word of the reader after which the agent ends."""
TORCH_SECONDS = 45.0
"""Seconds for a process with torch, which may take a while to start the first time."""


def main() -> None:
    """Runs until standard input ends."""
    channel = AgentChannel(SILENCE, MOST_LINE)
    PreflightAgent(channel, channel.requests.get()).run()


class PreflightAgent:
    """Answers the requests of the channel. `first`: the options of all tests."""

    def __init__(self, channel: AgentChannel, first: Json) -> None:
        self._channel = channel
        self._interface = first.get("interface")
        self._data = first.get("data")
        self._pythons = [str(name) for name in first.get("pythons", ())]
        self._program = str(first.get("torch_program", ""))
        self._listener: socket_link.Listener | None = None

    def run(self) -> None:
        self._channel.write(MAGIC)
        self._channel.write(pack_frame("hello", json.dumps(self._describe()).encode()))
        tests: dict[str, Callable[[Json], Json]] = {
            "compute": lambda _: host_speed.measure_compute(),
            "memory": lambda _: host_speed.measure_memory(),
            "disk": lambda _: host_speed.measure_disk(self._data),
            "listen": self._open_port,
            "link": lambda given: socket_link.measure_link(*given["to"]),
            "close": lambda _: self._close_port(),
            "port": lambda given: {"port": socket_link.find_free_port(given["address"])},
            "devices": lambda given: self._run_torch([given])[0],
            "collective": lambda given: {"ranks": self._run_torch(given["ranks"])},
        }
        while True:
            self._channel.flush()
            request = self._channel.requests.get()
            try:
                report = tests[request["test"]](request)
            except (OSError, KeyError, TypeError, ValueError, MemoryError) as error:
                report = {"trouble": f"{type(error).__name__}: {error}"[:300]}
            body = json.dumps(report).encode()
            self._channel.write(pack_frame("result", body, number=request.get("number")))

    def _describe(self) -> Json:
        return {
            "host": os.uname().nodename,
            "boot": processes.boot_id(),
            "python": sys.version.split()[0],
            "cores": len(os.sched_getaffinity(0)),
            "processor": _name_processor(),
            "address": socket_link.find_address(self._interface),
        }

    def _open_port(self, given: Json) -> Json:
        self._close_port()
        self._listener = socket_link.Listener(given["address"])
        return {"port": self._listener.port, "token": self._listener.token}

    def _close_port(self) -> Json:
        listener, self._listener = self._listener, None
        return listener.close() if listener is not None else {}

    def _run_torch(self, requests: list[Json]) -> list[Json]:
        """Runs the program once for each request, all at once, with the first Python that has
        torch."""
        reports: list[Json] = [{"trouble": torch_speed.NO_TORCH}]
        for python in self._pythons:
            reports = self._run_with(python, requests)
            if any(report.get("trouble") != torch_speed.NO_TORCH for report in reports):
                break
        return reports

    def _run_with(self, python: str, requests: list[Json]) -> list[Json]:
        running: list[subprocess.Popen[bytes]] = []
        try:
            for request in requests:
                command = [python, "-c", self._program, json.dumps(request)]
                running.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,  # it ends with this process
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                    )
                )
            end = time.monotonic() + TORCH_SECONDS
            return [_collect(process, end) for process in running]
        except OSError:
            return [{"trouble": torch_speed.NO_TORCH}]
        finally:
            for process in running:
                process.kill()
                process.wait()


def _collect(process: subprocess.Popen[bytes], end: float) -> Json:
    """The report that a process prints by `end`."""
    chunks: list[bytes] = []
    errors: list[bytes] = []
    readers = [
        threading.Thread(target=_read_all, args=(stream, kept), daemon=True)
        for stream, kept in ((process.stdout, chunks), (process.stderr, errors))
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0.1, end - time.monotonic()))
    lines = b"".join(chunks).decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        if line.startswith(torch_speed.MARK):
            report: Json = json.loads(line.removeprefix(torch_speed.MARK))
            return report
    if process.poll() is None:
        return {"trouble": f"it did not end within {TORCH_SECONDS:.0f} s"}
    said = b"".join(errors).decode("utf-8", "replace").strip().splitlines()
    return {"trouble": f"its process ended with {process.wait()}: {(said or [''])[-1]}"[:300]}


def _read_all(stream: Any, kept: list[bytes]) -> None:
    while data := os.read(stream.fileno(), 1 << 16):
        kept.append(data)


def _name_processor() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "CPU part", "cpu"):
            return value.strip()[:100]
    return None
