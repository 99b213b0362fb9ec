"""The user's settings: `[tool.mgpu-doctor]` in the nearest pyproject.toml."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from mgpu_doctor.cli.output import leave
from mgpu_doctor.rules.settings import DEFAULTS, Settings, SettingsError, settings_from

FILE = "pyproject.toml"
WRONG_USAGE = 2
MOST_BYTES = 1 << 20
_MAY_SET = r"""(?m)^\s*\[?\s*["']?tool["']?\s*(\]|=|\.\s*["']?mgpu-doctor)"""
"""Most files set nothing here, and to read TOML takes a tenth of the time of `top --once`."""


def settings() -> Settings:
    """What the working folder, or the nearest one above it, sets; leaves with exit code 2 where
    that is wrong."""
    try:
        return read_settings(Path.cwd())
    except SettingsError as error:
        leave(f"{error}.", WRONG_USAGE)


def read_settings(folder: Path) -> Settings:
    """The settings of the nearest pyproject.toml that has any. Raises `SettingsError`."""
    for place in (folder, *folder.parents):
        file = place / FILE
        try:
            with file.open("rb") as opened:
                text = opened.read(MOST_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "mgpu-doctor" not in text or not re.search(_MAY_SET, text):
            continue
        try:
            table = _table(text)
            if isinstance(table, dict):
                from mgpu_doctor.rules.catalogue import catalogue  # all rules: nearly never needed

                return replace(settings_from(table, catalogue().rules), forgiving=True)
        except (ValueError, SettingsError, AttributeError) as error:
            raise SettingsError(f"[tool.mgpu-doctor] in {file}: {error}") from None
    return replace(DEFAULTS, forgiving=True)


def _table(text: str) -> object:
    """`[tool.mgpu-doctor]` of it. Raises ValueError where it is no TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    found: object = tomllib.loads(text).get("tool", {}).get("mgpu-doctor")
    return found
