"""Forwards the job's output to its original destination and keeps a bounded copy.

A separate program (`python -I -S`, standard library only), so that it outlives the doctor. Two
processes, neither a child of the doctor's: the *pump* moves bytes and touches no file; the
*guardian*, its parent, writes the copy and starts a new pump where one was killed. Data that a pump
has read but not yet written is in shared memory, so a new pump continues where the old one stopped.
A copy that cannot keep up or cannot be written is dropped.

Descriptors: CHANNEL, the end from which the job's output is read (a pipe or a terminal's master);
OUT, where it goes; CONTROL, a socket to the doctor. The doctor sends `d` (move everything now) and
gets `d` when it is moved and `c` when it is copied too; it sends `w` (the terminal was resized) and
gets `w`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import select
import signal
import termios

CHANNEL, OUT, CONTROL = 3, 4, 5
CHUNK = 64 << 10
TAKEN, GIVEN, BEGUN, READING, KEPT, NEWS, TOLD = range(7)
"""Counters in shared memory: bytes read from CHANNEL, bytes written to OUT, TAKEN at the start of
the current chunk, 1 while it is being read, bytes ever put into the ring, 1 while the guardian has
been notified of new data, bytes that pumps wrote elsewhere than to OUT."""
DRAIN_LIMIT = 4 << 20
"""More than a pipe or a terminal can buffer: other processes may still print during a drain."""
KEEP = 4 << 20
"""Bytes of a copy: NAME holds the first KEEP, NAME.1 the newest KEEP to 2 * KEEP of the rest."""
RING = 4 << 20
COPY_EVERY_MS = 200
PUMPS = 100
COPY_VARIABLE = "MGPU_DOCTOR_COPY"
IGNORED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2),
)


def main() -> None:
    path = os.environb[COPY_VARIABLE.encode()]
    inherited = [int(name) for name in os.listdir("/proc/self/fd")]
    # The doctor sees any failure up to here, and lets the job print without this program.
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor in inherited:
        if descriptor not in (CHANNEL, OUT, CONTROL):
            close(descriptor)
    for _ in range(CHANNEL):
        os.open(os.devnull, os.O_RDWR)  # occupies 0, 1 and 2, so that nothing else gets them
    guard(Shared(), Copy(path))


class Shared:
    """Memory shared by both processes: the chunk being moved, and the newest data moved.

    Each counter is one aligned word and each fact is in one counter only, so a pump killed between
    any two instructions leaves a consistent state."""

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, mmap.PAGESIZE + CHUNK + RING))
        self._counters = memory[: 7 * 8].cast("q")
        self._body = memory[mmap.PAGESIZE : mmap.PAGESIZE + CHUNK]
        self._ring = memory[mmap.PAGESIZE + CHUNK :]

    def __getitem__(self, counter: int) -> int:
        return self._counters[counter]

    def __setitem__(self, counter: int, value: int) -> None:
        self._counters[counter] = value

    def read(self) -> int:
        """Reads the next chunk; returns its length in bytes, 0 at the end."""
        self[BEGUN] = self[TAKEN]
        self[READING] = 1
        try:
            length = os.readv(CHANNEL, [self._body])
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal that no process has open any more
                return 0
            raise
        self[TAKEN] += length
        self[READING] = 0
        return length

    def write(self) -> None:
        """Writes the rest of the chunk. Raises OSError if there is no reader."""
        while self[GIVEN] < self[TAKEN]:
            left = self._body[self[GIVEN] - self[BEGUN] : self[TAKEN] - self[BEGUN]]
            try:
                self[GIVEN] += os.write(OUT, left)
            except BlockingIOError:  # another process that shares OUT made it non-blocking
                wait_for(OUT, select.POLLOUT)

    def recover(self, read: int, written: int) -> None:
        """Adds what a killed pump did but could not count: `read` bytes in total, `written` bytes
        to OUT."""
        if self[READING]:
            self[TAKEN] += read
        self[READING] = 0
        self[GIVEN] += written

    def keep(self) -> bool:
        """Puts the chunk into the ring; returns whether the guardian must be notified."""
        length, total = self[TAKEN] - self[BEGUN], self[KEPT]
        place = total % RING
        first = min(length, RING - place)
        self._ring[place : place + first] = self._body[:first]
        self._ring[: length - first] = self._body[first:length]
        self[KEPT] = total + length
        known, self[NEWS] = self[NEWS], 1
        return not known

    def kept(self, since: int) -> tuple[int, bytes]:
        """Returns the data after the first `since` bytes, and the total number of bytes. If there
        is too much, only the newest part."""
        self[NEWS] = 0
        total = self[KEPT]
        start = max(since, total - RING)
        place, length = start % RING, total - start
        first = min(length, RING - place)
        data = bytes(self._ring[place : place + first]) + bytes(self._ring[: length - first])
        overwritten = max(0, self[KEPT] + CHUNK - RING - start)  # during the copy
        return total, data[overwritten:]


class Pump:
    def __init__(self, shared: Shared, notes: int) -> None:
        self.shared, self.notes = shared, notes

    def run(self) -> None:
        poll = select.poll()
        poll.register(CHANNEL, select.POLLIN)
        poll.register(OUT, 0)  # only errors: the reader is gone
        poll.register(CONTROL, select.POLLIN)
        try:
            self.shared.write()
            while True:
                ready = dict(poll.poll())
                if CONTROL in ready and not self.obey():
                    poll.unregister(CONTROL)
                if OUT in ready:
                    break
                if CHANNEL in ready and not self.move():
                    return
        except OSError:
            pass  # the output has no reader any more
        # As without this program, the job's next write must fail.
        os.close(CHANNEL)
        self.tell(self.notes, b"x")

    def move(self) -> int:
        """Moves one chunk; returns its length in bytes, 0 at the end."""
        length = self.shared.read()
        if length:
            self.shared.write()
            if self.shared.keep():
                self.tell(self.notes, b"k")
        return length

    def obey(self) -> bool:
        """Executes the doctor's request; returns False if the doctor is gone."""
        try:
            asked = os.read(CONTROL, 64)
        except OSError:
            return False
        if b"w" in asked:
            fit_terminal()
            self.tell(CONTROL, b"w")
        if b"d" in asked:
            moved = 0
            while moved < DRAIN_LIMIT and wait_for(CHANNEL, select.POLLIN, 0):
                length = self.move()
                if not length:
                    break
                moved += length
            self.tell(CONTROL, b"d")
            if not self.tell(self.notes, b"c"):
                self.tell(CONTROL, b"c")  # no guardian, no copy
        return bool(asked)

    def tell(self, descriptor: int, message: bytes) -> bool:
        self.shared[TOLD] += len(message)
        value = tell(descriptor, message)
        if not value:
            self.shared[TOLD] -= len(message)
        return value


class Copy:
    """The bounded copy files. A failure loses the current bytes, nothing else."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.seen = 0
        self.sizes = {path: 0, path + b".1": 0}

    def catch_up(self, shared: Shared) -> None:
        """Writes what came since the last call, with a mark where data was lost."""
        total, data = shared.kept(self.seen)
        lost = total - self.seen - len(data)
        self.seen = total
        self.add(data, lost)

    def add(self, data: bytes, lost: int = 0) -> None:
        """Appends `data`, after a mark for the bytes that were lost before it."""
        if lost:
            self._add(b"\n[mgpu-doctor: %d bytes were not copied here]\n" % lost)
        self._add(data)

    def _add(self, data: bytes) -> None:
        room = KEEP - self.sizes[self.path]
        self._append(self.path, data[:room])
        newer = self.path + b".1"
        rest = data[room:][-KEEP:]
        if rest and self.sizes[newer] + len(rest) > 2 * KEEP:
            self._halve(newer)
        if rest:
            self._append(newer, rest)

    def _append(self, path: bytes, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        try:
            file = os.open(path, flags, 0o600)
            try:
                while data:
                    written = os.write(file, data)
                    self.sizes[path] += written
                    data = data[written:]
            finally:
                os.close(file)
        except OSError:
            pass

    def _halve(self, path: bytes) -> None:
        """Keeps the newest half, in whole lines, under the same name."""
        draft = path + b".draft"
        try:
            with open(path, "rb") as old:
                old.seek(-KEEP, os.SEEK_END)
                newest = old.read().partition(b"\n")[2]
            self.sizes[draft] = 0
            self._append(draft, newest)
            os.replace(draft, path)
            self.sizes[path] = self.sizes.pop(draft)
        except OSError:
            self.sizes[path] = 0


def guard(shared: Shared, copy: Copy) -> None:
    """Runs pumps until one reaches the end of the output."""
    for _ in range(PUMPS):
        notes, notes_in = os.pipe()
        os.set_blocking(notes_in, False)
        taken, put = shared[TAKEN], shared[GIVEN] + shared[TOLD]
        pump = os.fork()
        if not pump:
            os.close(notes)
            Pump(shared, notes_in).run()
            os._exit(0)
        os.close(notes_in)
        serve(notes, shared, copy)
        os.close(notes)
        os.waitid(os.P_PID, pump, os.WEXITED | os.WNOWAIT)
        read, written = moved(pump)
        if os.waitpid(pump, 0)[1] == 0:
            return
        shared.recover(
            max(0, read - (shared[TAKEN] - taken)),
            max(0, written - (shared[GIVEN] + shared[TOLD] - put)),
        )


def moved(pid: int) -> tuple[int, int]:
    """Returns the bytes that a process has read and written so far (proc(5), `rchar` and `wchar` of
    /proc/PID/io); zeros if the kernel has no such counters."""
    counts = {b"rchar": 0, b"wchar": 0}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name in counts:
                counts[name] = int(value)
    return counts[b"rchar"], counts[b"wchar"]


def serve(notes: int, shared: Shared, copy: Copy) -> None:
    """Writes the copy until this pump is gone."""
    pending = False
    while True:
        if pending and not wait_for(notes, select.POLLIN, COPY_EVERY_MS):
            copy.catch_up(shared)
            pending = False
            continue
        note = os.read(notes, 64)
        pending = pending or b"k" in note
        if b"x" in note:
            close(CHANNEL)
        if b"c" in note or not note:
            copy.catch_up(shared)
            pending = False
        if b"c" in note:
            tell(CONTROL, b"c")
        if not note:
            return


def fit_terminal() -> None:
    """Resizes the job's terminal to the size of the real one."""
    try:
        size = fcntl.ioctl(OUT, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(CHANNEL, termios.TIOCSWINSZ, size)
    except OSError:
        pass


def wait_for(descriptor: int, event: int, milliseconds: int | None = None) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(milliseconds))


def tell(descriptor: int, message: bytes) -> bool:
    try:
        return os.write(descriptor, message) == len(message)
    except OSError:
        return False


def close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


if __name__ == "__main__":
    main()
