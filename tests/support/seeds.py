"""Random seeds of a test: a few in the quick suite, a sweep over many in the slow one."""

from __future__ import annotations

import pytest


def few_or_sweep(few: int, many: int, *, first: int = 0) -> pytest.MarkDecorator:
    """Parametrizes `seeds`: the first `few`, and, marked slow, the others up to `many`."""
    return pytest.mark.parametrize(
        "seeds",
        [
            pytest.param(range(first, first + few), id="few"),
            pytest.param(range(first + few, first + many), id="sweep", marks=pytest.mark.slow),
        ],
    )
