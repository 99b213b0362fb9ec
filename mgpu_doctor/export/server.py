"""A small HTTP server that answers `GET /metrics` and hardly anything else.

Two threads, however many clients there are: one has all connections, the other makes the page.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from mgpu_doctor.export import own
from mgpu_doctor.export.address import Address
from mgpu_doctor.export.connections import BACKLOG, SECONDS_TO_ASK, SEND_BUFFER, Connections
from mgpu_doctor.export.own import Answers
from mgpu_doctor.export.page import END, lines
from mgpu_doctor.export.request import Access, Page
from mgpu_doctor.export.sampling import NoSampleError, Sampler, report_failure


class Server:
    """`token`: what a request must bear; None: nothing. `names`: what it may call us. Raises
    `OSError` where it cannot listen."""

    def __init__(
        self,
        address: Address,
        sampler: Sampler,
        *,
        token: str | None,
        names: Sequence[str],
        seconds_to_ask: float = SECONDS_TO_ASK,
    ) -> None:
        self._sampler = sampler
        self._answers = Answers()
        self._orders: SimpleQueue[bool] = SimpleQueue()
        listener = _listener(address)
        self.port = int(listener.getsockname()[1])
        self._connections = Connections(
            listener,
            Access(token, ("localhost", *names)),
            self._answers,
            partial(self._orders.put, True),
            seconds_to_ask=seconds_to_ask,
            seconds_to_wait=sampler.patience,
        )

    def run(self) -> None:
        """Serve until `stop`."""
        threading.Thread(target=self._make_pages, name="pages", daemon=True).start()
        self._connections.run()

    def stop(self) -> None:
        """For another thread."""
        self._orders.put(False)
        self._connections.stop()

    def _make_pages(self) -> None:
        while self._orders.get():
            self._connections.deliver(self._page())

    def _page(self) -> Page | str:
        """The sentence says why there is none."""
        try:
            sample = self._sampler.get()
            families = own.families(self._sampler, sample, self._answers)
            return Page.of(sample.text + lines(families) + END)
        except NoSampleError as error:
            return str(error)
        except Exception as error:  # whatever it is: the next page may succeed
            report_failure(error)
            return "the sample failed"


def _listener(address: Address) -> socket.socket:
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # of each connection
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def serve(server: Server) -> Callable[[], None]:
    """Serve in a thread of its own; what is returned ends that."""
    thread = threading.Thread(target=server.run, name="connections", daemon=True)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join()

    return stop
