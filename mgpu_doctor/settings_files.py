"""The user's settings: `[tool.mgpu-doctor]` in the nearest pyproject.toml.

Settings can disable findings, so a file is used only if this user or root owns it. The search ends
at the first folder that others can write to.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from mgpu_doctor.errors import WRONG_USAGE, DoctorError
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.rules.settings import DEFAULTS, Settings, SettingsError, settings_from

FILE = "pyproject.toml"
MAX_BYTES = 1 << 20
_MAY_SET = r"""(?m)^\s*\[?\s*["']?tool["']?\s*(\]|=|\.\s*["']?mgpu-doctor)"""
"""Only files that match are parsed: parsing TOML takes a tenth of the time of `top --once`."""


def settings() -> Settings:
    """The settings for the working folder. Raises DoctorError if they are invalid."""
    try:
        return read_settings(working_folder())
    except SettingsError as error:
        raise DoctorError(f"{error}.", WRONG_USAGE) from None


def working_folder() -> Path | None:
    """The working folder; None if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def read_settings(folder: Path | None) -> Settings:
    """The settings of the nearest pyproject.toml that has any. Raises `SettingsError`."""
    for file, text, mine in _files(folder) if folder is not None else ():
        if "mgpu-doctor" not in text or not re.search(_MAY_SET, text):
            continue
        if not mine:
            print_message(
                f"[tool.mgpu-doctor] in {file} is not used: the file belongs to another user."
            )
            continue
        try:
            table = _table(text)
            if isinstance(table, dict):
                from mgpu_doctor.rules.catalogue import (
                    catalogue,  # imports all rules, which few users need
                )

                return structs.replace(settings_from(table, catalogue().rules), forgiving=True)
        except (ValueError, SettingsError, AttributeError, RecursionError) as error:
            raise SettingsError(f"[tool.mgpu-doctor] in {file}: {error}") from None
    return structs.replace(DEFAULTS, forgiving=True)


def _files(folder: Path) -> Iterator[tuple[Path, str, bool]]:
    """Each pyproject.toml from `folder` upwards, its text, and whether it is the user's or
    root's."""
    for place in (folder, *folder.parents):
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            shared = others_can_write(os.fstat(descriptor))
            content = _read(descriptor, follow=not shared)
        finally:
            os.close(descriptor)
        if content is not None:
            text, owner = content
            yield place / FILE, text, owner in (os.geteuid(), 0)
        if shared:
            return


def _read(folder: int, *, follow: bool) -> tuple[str, int] | None:
    """Text and owner of the file in an open folder; None if there is no readable regular file. A
    pipe of that name does not block."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        with open(os.open(FILE, flags, dir_fd=folder), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            return opened.read(MAX_BYTES).decode("utf-8"), status.st_uid
    except (OSError, UnicodeDecodeError):
        return None


def others_can_write(status: os.stat_result) -> bool:
    """Whether anyone but the user and root can create files in this folder. A group with the
    user's name and no other members counts as the user."""
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)


def _is_private_group(number: int) -> bool:
    if number == 0:
        return True  # root's
    import grp  # few folders need them
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _table(text: str) -> object:
    """The table `[tool.mgpu-doctor]` of a TOML text. Raises ValueError if it is invalid."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    table: object = tomllib.loads(text).get("tool", {}).get("mgpu-doctor")
    return table
