"""Starts the processes of a cluster on this machine and ends them together.

    python -m mgpu_trainers.tensorflow.launcher --workers 2 MODULE OPTIONS…

Exits with 0 when the training is over; else with the exit code of the process that ended first, or
128 plus the signal that ended it.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from mgpu_trainers import cluster
from mgpu_trainers.cluster import Task
from mgpu_trainers.process_lifetime import end_with_parent

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a job to end."""

FORWARDED = (*ASKING, signal.SIGUSR1, signal.SIGUSR2)

GRACE = 2.0
"""Seconds from being asked to being killed."""


class ProcessGroup:
    """The processes of a job: watched, sent the signals we receive, and ended together.

    Use it in a `with`, from a process of one thread: no process outlives it. TensorFlow swallows
    SIGTERM while it waits, so a process that does not end in time is killed. `asked`: the signal
    that asked us to end, once all have ended.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self._grace = grace
        self._running: dict[Task, subprocess.Popen[bytes]] = {}
        self.asked: signal.Signals | None = None
        # Blocked, an ignored signal would come after all: nohup and `&` mean that it should not.
        self._taken = {signal.SIGCHLD} | {
            number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN
        }

    def __enter__(self) -> "ProcessGroup":
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def start(self, task: Task, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._running[task] = subprocess.Popen(
            command,
            env=environment,
            preexec_fn=self._in_child,  # noqa: PLW1509  # there is one thread
        )

    def _in_child(self) -> None:
        end_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def wait(self) -> int:
        """Waits until the job is over or a signal asks for its end; the exit code."""
        while True:
            for task, code in self._ended():
                verdict = self._verdict(task, code)
                if verdict is not None:
                    self._end(signal.SIGTERM)
                    return verdict
            got = signal.sigtimedwait(self._taken, 1.0)
            received = signal.Signals(got.si_signo) if got else None
            if received is None or received == signal.SIGCHLD:
                continue
            if received in ASKING:
                self._end(received)
                self.asked = received
                return 128 + received
            self._tell(received)

    def _ended(self) -> list[tuple[Task, int]]:
        """Tasks that ended since the last call, those killed by a signal first: the others will
        have failed because of them."""
        codes = [(task, process.poll()) for task, process in self._running.items()]
        ended = [(task, code) for task, code in codes if code is not None]
        for task, _ in ended:
            del self._running[task]
        return sorted(ended, key=lambda process_end: process_end[1])

    def _verdict(self, task: Task, code: int) -> int | None:
        """The job's exit code now that this task ended with `code`; None: it goes on."""
        roles = [task.role for task in self._running]
        served = "chief" in roles
        if task.role == "chief" or (code == 0 and not roles):
            return _shell(code)
        if code == 0 and not served:
            return None
        ending = f"ended with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        if served and task.role == "worker" and "worker" in roles:
            print(f"{task} {ending}; the others go on", file=sys.stderr, flush=True)
            return None
        rest = "; ending the others" if roles else ""
        print(f"{task} {ending}{rest}", file=sys.stderr, flush=True)
        return _shell(code) or 1

    def _end(self, how: signal.Signals) -> None:
        """Signals all, and kills those that do not end in time, or at once when asked again."""
        self._tell(how)
        deadline = time.monotonic() + self._grace
        while self._running and (seconds_left := deadline - time.monotonic()) > 0:
            received = signal.sigtimedwait(self._taken, seconds_left)
            if received is not None and received.si_signo in ASKING:
                break
            self._ended()
        self._tell(signal.SIGKILL)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._running.values():
            process.send_signal(number)


def _shell(code: int) -> int:
    return code if code >= 0 else 128 - code


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mgpu_trainers.tensorflow.launcher")
    parser.add_argument("--workers", type=int, required=True, help="how many of them")
    parser.add_argument("--servers", type=int, default=0, help="parameter servers, with a chief")
    parser.add_argument("module", help="what each process runs")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the module")
    args = parser.parse_args(argv)
    tf_cluster = cluster.local_cluster(args.workers, args.servers)
    command = [sys.executable, "-m", args.module, *args.options]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ProcessGroup() as processes,
    ):
        common = os.environ | {cluster.FOLDER: folder}
        for task in tf_cluster.tasks():
            processes.start(task, command, common | {cluster.VARIABLE: tf_cluster.config(task)})
        code = processes.wait()
    if processes.asked is not None:
        signal.signal(processes.asked, signal.SIG_DFL)
        os.kill(os.getpid(), processes.asked)
    return code


if __name__ == "__main__":
    sys.exit(main())
