"""Runs tests in several processes that are forked once all tests are collected.

Under xdist each process starts, imports and collects by itself, which takes seconds of processor
time. Here one process does so for all. The others take one file after another from a queue, so
that the tests of a file share what it sets up, and send their reports to the first.
"""

from __future__ import annotations

import os
import signal
import struct
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn, cast

import pytest
from _pytest.runner import runtestprotocol

PLACE = struct.Struct("<H")
"""The place of a file in the queue."""
Files = Sequence[Sequence[pytest.Item]]
"""The tests of each file."""


@dataclass(frozen=True)
class Gateway:
    id: str


@dataclass(frozen=True)
class Node:
    """By this attribute of a report, pytest's terminal knows that another process sent it."""

    gateway: Gateway
    _workerinfocache: str = ""
    """Is printed above a failure."""


@dataclass(frozen=True)
class Sender:
    """The plugin of a forked process: it sends what happens instead of printing it."""

    connection: Connection
    every: bool
    """Whether to send reports of setup and teardown that passed, too."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        config = item.config
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if self.every or report.when == "call" or not report.passed:
                sent = config.hook.pytest_report_to_serializable(config=config, report=report)
                self.connection.send(("report", sent))
        return True

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if when != "runtest":  # the first process has shown the others
            return
        category = warning_message.category
        shown = {
            "message": str(warning_message.message),
            "category": category if category.__module__ == "builtins" else UserWarning,
            "filename": warning_message.filename,
            "lineno": warning_message.lineno,
        }
        context = {"when": when, "nodeid": nodeid, "location": location}
        self.connection.send(("warning", (shown, context)))


def run_in_processes(session: pytest.Session, count: int) -> None:
    """Runs the collected tests in `count` processes. A test without a report has failed: the
    process that took it ended before."""
    files = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
    queue = make_queue(len(files))
    factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
    folder = factory.getbasetemp()
    processes: dict[Connection, int] = {}
    for number in range(count):
        here, there = Pipe(duplex=False)
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which NumPy's library has and knows how to fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            factory._basetemp = folder / f"process-{number}"
            factory._basetemp.mkdir(mode=0o700)
            run_until_the_end(session, files, queue, there)
        there.close()
        processes[here] = pid
    os.close(queue)
    try:
        missing = take_reports(session, list(processes))
    except BaseException:
        for pid in processes.values():
            os.kill(pid, signal.SIGINT)  # so that tests end what they have started
        raise
    finally:
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in processes.values()]
    why = f"No report of this test. The processes of the tests ended with the codes {codes}."
    for item in missing:
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
    if any(codes) and not missing:
        raise session.Failed(f"The processes of the tests ended with the codes {codes}.")


def make_queue(count: int) -> int:
    """A pipe that holds the places of all files. Each read takes one, in whatever process."""
    queue, end = os.pipe()
    os.write(end, b"".join(PLACE.pack(place) for place in range(count)))
    os.close(end)
    return queue


def take_items(files: Files, queue: int) -> Iterator[pytest.Item]:
    while place := os.read(queue, PLACE.size):
        yield from files[PLACE.unpack(place)[0]]


def run_until_the_end(
    session: pytest.Session, files: Files, queue: int, connection: Connection
) -> NoReturn:
    """What a forked process does. The rest of the session is left to the first process."""
    config = session.config
    code = 1
    try:
        capture_anew(config.pluginmanager.getplugin("capturemanager"))
        every = config.getoption("durations") is not None
        config.pluginmanager.register(Sender(connection, every))
        items = take_items(files, queue)
        item = next(items, None)
        while item is not None:
            following = next(items, None)  # decides what the item tears down
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        connection.send(None)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def capture_anew(capture: Any) -> None:
    """Processes that shared the files which hold captured output would mix it up."""
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()


def take_reports(session: pytest.Session, connections: Sequence[Connection]) -> list[pytest.Item]:
    """Passes on what the processes send until all have ended. Returns tests without a report."""
    config = session.config
    nodes = {connection: Node(Gateway(f"{n}")) for n, connection in enumerate(connections)}
    missing = {item.nodeid: item for item in session.items}
    while nodes:
        for connection in cast(list[Connection], wait(list(nodes))):
            try:
                sent = connection.recv()
            except EOFError:
                sent = None
            if sent is None:
                del nodes[connection]
            elif sent[0] == "warning":
                shown, context = sent[1]
                warning = {"warning_message": warnings.WarningMessage(**shown), **context}
                config.hook.pytest_warning_recorded.call_historic(kwargs=warning)
            else:
                report = config.hook.pytest_report_from_serializable(config=config, data=sent[1])
                report.node = nodes[connection]
                missing.pop(report.nodeid, None)
                config.hook.pytest_runtest_logreport(report=report)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
    return list(missing.values())
