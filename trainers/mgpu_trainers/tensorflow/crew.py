"""The processes of a job: watched, told what we are told, and ended together.

TensorFlow swallows SIGTERM while it waits for others: who is asked to end and does not is killed.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from mgpu_trainers.cluster import Task
from mgpu_trainers.lifeline import end_with_parent

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What asks a job to end."""
FORWARDED = (*ASKING, signal.SIGUSR1, signal.SIGUSR2)
GRACE = 2.0
"""Seconds from being asked to being killed."""


class Crew:
    """Used in a `with`, from a process of one thread: at its end nobody is left.

    `asked`: the signal by which we were asked to end, once that is done.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self._grace = grace
        self._running: dict[Task, subprocess.Popen[bytes]] = {}
        self.asked: signal.Signals | None = None
        # Blocked, an ignored signal would come after all: nohup and `&` mean that it should not.
        self._taken = {signal.SIGCHLD} | {
            each for each in FORWARDED if signal.getsignal(each) is not signal.SIG_IGN
        }

    def __enter__(self) -> "Crew":
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
        """Until the job is over, or a signal asked for its end: its exit code."""
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
        """Who ended since the last call. Of several whom a signal ended is first: the others will
        have failed for want of it."""
        codes = [(task, process.poll()) for task, process in self._running.items()]
        ended = [(task, code) for task, code in codes if code is not None]
        for task, _ in ended:
            del self._running[task]
        return sorted(ended, key=lambda each: each[1])

    def _verdict(self, task: Task, code: int) -> int | None:
        """The job's exit code now that this task ended with `code`; None: it goes on."""
        roles = [each.role for each in self._running]
        served = "chief" in roles
        if task.role == "chief" or (code == 0 and not roles):
            return _shell(code)
        if code == 0 and not served:
            return None
        what = f"ended with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        if served and task.role == "worker" and "worker" in roles:
            print(f"{task} {what}; the others go on", file=sys.stderr, flush=True)
            return None
        rest = "; ending the others" if roles else ""
        print(f"{task} {what}{rest}", file=sys.stderr, flush=True)
        return _shell(code) or 1

    def _end(self, how: signal.Signals) -> None:
        """Asks all, and kills who does not end in time, or at once when asked again."""
        self._tell(how)
        deadline = time.monotonic() + self._grace
        while self._running and (left := deadline - time.monotonic()) > 0:
            received = signal.sigtimedwait(self._taken, left)
            if received is not None and received.si_signo in ASKING:
                break
            self._ended()
        self._tell(signal.SIGKILL)

    def _tell(self, what: signal.Signals) -> None:
        for process in self._running.values():
            process.send_signal(what)


def _shell(code: int) -> int:
    return code if code >= 0 else 128 - code
