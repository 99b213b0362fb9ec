"""Scrapes the exporter and parses its pages with the Prometheus library's strict parser."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from prometheus_client.openmetrics.parser import text_string_to_metric_families

Series = dict[tuple[tuple[str, str], ...], float]


@dataclass(frozen=True)
class Page:
    """A scraped page; no series may occur twice."""

    text: str

    def __post_init__(self) -> None:
        keys = [line.rpartition(" ")[0] for line in self.text.splitlines() if line[0] != "#"]
        assert len(keys) == len(set(keys)), "a series is there twice"
        assert self.by_name is not None

    def named(self) -> dict[str, Series]:
        return self.by_name

    @cached_property
    def by_name(self) -> dict[str, Series]:
        by_name: dict[str, Series] = {}
        families = text_string_to_metric_families(self.text)  # type: ignore[no-untyped-call]
        for family in families:
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                by_name.setdefault(sample.name, {})[labels] = sample.value
        return by_name

    def of(self, name: str, **labels: str) -> list[float]:
        """Values of the series of `name` that have these labels."""
        wanted = set(labels.items())
        series = self.named().get(name, {})
        return [value for known, value in series.items() if wanted <= set(known)]

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(known) for known in self.named().get(name, {})]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def page(self) -> Page:
        assert self.status == 200, self.body
        return Page(self.body.decode())


def ask(port: int, path: str = "/metrics", *, method: str = "GET", **headers: str) -> Reply:
    """Sends a request and returns the reply, after the server has closed the connection: only then
    has the server counted it. `headers`: by name, `_` for `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, headers=named)
        with connection.sock.dup() as ended:
            reply = connection.getresponse()
            body = reply.read()
            with suppress(ConnectionResetError):
                while ended.recv(4096):
                    pass  # of an answer to HEAD the body is not read
        return Reply(reply.status, dict(reply.headers), body)
    finally:
        connection.close()
