"""The bearer token: made once, kept where only its owner reads it."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from mgpu_doctor.recording.write import private_folder, write_whole

FILE = "export-token"
MOST_BYTES = 4096
SHORTEST = 16


class TokenError(ValueError):
    """There is no token to be had; the sentence says why."""


def kept(home: Path) -> tuple[str, bool]:
    """The token kept in the doctor's `home`, and whether it was made just now. Raises
    `TokenError`."""
    file = home / FILE
    try:
        if file.is_symlink() or file.exists():
            return _own(file), False
        token = secrets.token_urlsafe(32)
        private_folder(home)
        write_whole(file, f"{token}\n".encode())
    except OSError as error:
        raise TokenError(f"no token can be kept in {file} ({error.strerror})") from None
    return token, True


def given(file: Path) -> str:
    """The token in a file that the user named. Raises `TokenError`."""
    try:
        with file.open("rb") as opened:
            return _checked(opened.read(MOST_BYTES + 1), file)
    except OSError as error:
        raise TokenError(f"{file} cannot be read ({error.strerror})") from None


def _own(file: Path) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        private = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
        if not stat.S_ISREG(found.st_mode) or not private:
            raise TokenError(f"others may read or change {file}; remove it, and a new one is made")
        return _checked(opened.read(MOST_BYTES + 1), file)


def _checked(content: bytes, file: Path) -> str:
    token = content.strip()
    if len(content) > MOST_BYTES or len(token) < SHORTEST:
        raise TokenError(f"{file} holds no token: {SHORTEST} to {MOST_BYTES} characters")
    if not all(0x21 <= character <= 0x7E for character in token):
        raise TokenError(f"{file} holds no token: one line of ASCII without spaces is one")
    return token.decode("ascii")
