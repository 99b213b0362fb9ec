"""Where to listen, and which names a request may call this server by."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

LOOPBACK = "127.0.0.1"


class AddressError(ValueError):
    """Nothing can listen there; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """`host`: an IP address in its usual writing."""

    host: str
    port: int
    family: socket.AddressFamily

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.host).is_loopback

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if self.family is socket.AF_INET6 else self.host
        return f"http://{name}:{self.port}/metrics"


def resolved(name: str, port: int) -> Address:
    """The first address that `name` has. Raises `AddressError`."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no valid name"
        raise AddressError(f"{name} is no address of this machine ({reason})") from None
    family, _, _, _, place = found[0]
    return Address(str(place[0]), port, family)


def is_ours(host: str | None, names: Iterable[str]) -> bool:
    """Whether a request's Host header is an IP address or one of our `names`.

    A page in a browser that reaches us by DNS rebinding bears the name of its own site."""
    if host is None:
        return False
    name, port = _split(host.strip())
    if port and not (port.isascii() and port.isdigit()):
        return False
    if name.lower().removesuffix(".") in {known.lower() for known in names}:
        return True
    try:
        return host.strip().startswith("[") == isinstance(ip_address(name), IPv6Address)
    except ValueError:
        return False


def _split(host: str) -> tuple[str, str]:
    """Name and port, without brackets."""
    if host.startswith("["):
        name, end, rest = host[1:].partition("]")
        return (name, rest.removeprefix(":")) if end and rest[:1] in ("", ":") else ("", "")
    name, _, port = host.partition(":")
    return name, port
