"""The quick run does not import what only a browser needs."""

from __future__ import annotations

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return "not browser" in config.getoption("markexpr") or None
