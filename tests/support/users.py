"""Makes files look as if they belonged to another user, with root's rights or without."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

NOBODY = 65_534


def give_to_other_user(path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Makes `path` another user's: really, where root is there; else the code in `module` takes
    itself for another user."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(module.os, "geteuid", lambda: NOBODY)
