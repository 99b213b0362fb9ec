"""One process loads what its children need, and forks one for whoever asks."""

from __future__ import annotations

import os
import socket

END = b"end "


def children() -> socket.socket | None:
    """Standard input is a socket. For a connection that comes there, with a file for what is
    printed, a child is forked, in which this returns the connection; the answer is its number.
    The answer to `end NUMBER` is the exit code of that child, which is over. None, in the parent:
    nobody asks any more."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        asked, given, _, _ = socket.recv_fds(control, 64, 2)
        if not asked:
            return None
        if asked.startswith(END):
            _, status = os.waitpid(int(asked.removeprefix(END)), 0)
            control.sendall(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        connection, printed = given
        begun, begins = os.pipe()
        child = os.fork()
        if not child:
            control.close()
            os.setsid()  # what the user's code starts ends with it
            os.close(begun)
            os.close(begins)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            os.close(printed)
            os.dup(connection)  # never closed: whoever sees it end knows that the process is over
            return socket.socket(fileno=connection)
        os.close(connection)
        os.close(printed)
        os.close(begins)
        os.read(begun, 1)  # to the end: only a session that is there can be ended
        os.close(begun)
        control.sendall(b"%d" % child)
