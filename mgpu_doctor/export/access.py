"""Who may read the metrics: the address to listen on, the names of this server, the bearer
token.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from mgpu_doctor.recording.write import private_folder, write_whole

LOOPBACK = "127.0.0.1"


class AddressError(ValueError):
    """Listening on this address is impossible; the message is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on. `host`: an IP address in its canonical form."""

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
    """Returns the first address of `name`. Raises `AddressError`."""
    try:
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid name"
        raise AddressError(f"{name} is not an address of this machine ({reason})") from None
    family, _, _, _, place = addresses[0]
    return Address(str(place[0]), port, family)


def is_ours(host: str | None, names: Iterable[str]) -> bool:
    """Returns whether a request's Host header is an IP address or one of our `names`.

    A web page that reaches us by DNS rebinding sends its own site's name."""
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
    """Returns name and port, without brackets."""
    if host.startswith("["):
        name, end, rest = host[1:].partition("]")
        return (name, rest.removeprefix(":")) if end and rest[:1] in ("", ":") else ("", "")
    name, _, port = host.partition(":")
    return name, port


FILE = "export-token"
MOST_BYTES = 4096
SHORTEST = 16


class TokenError(ValueError):
    """No token is available; the message is one sentence that says why."""


def kept(home: Path) -> tuple[str, bool]:
    """Returns the token kept in the doctor's `home`, and whether it was created just now. Raises
    `TokenError`."""
    file = home / FILE
    try:
        if file.is_symlink() or file.exists():
            return _own(file), False
        token = secrets.token_urlsafe(32)
        private_folder(home)
        write_whole(file, f"{token}\n".encode())
    except OSError as error:
        raise TokenError(f"a token cannot be stored in {file} ({error.strerror})") from None
    return token, True


def given(file: Path) -> str:
    """Returns the token in a file that the user named. Raises `TokenError`."""
    try:
        with file.open("rb") as opened:
            return _checked(opened.read(MOST_BYTES + 1), file)
    except OSError as error:
        raise TokenError(f"{file} cannot be read ({error.strerror})") from None


def _own(file: Path) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        if not stat.S_ISREG(status.st_mode) or not private:
            raise TokenError(
                f"other users can read or change {file}; remove it to create a new one"
            )
        return _checked(opened.read(MOST_BYTES + 1), file)


def _checked(content: bytes, file: Path) -> str:
    token = content.strip()
    if len(content) > MOST_BYTES or len(token) < SHORTEST:
        raise TokenError(f"{file} contains no token: {SHORTEST} to {MOST_BYTES} characters")
    if not all(0x21 <= character <= 0x7E for character in token):
        raise TokenError(f"{file} contains no token: a token is one line of ASCII without spaces")
    return token.decode("ascii")
