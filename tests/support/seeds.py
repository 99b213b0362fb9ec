"""How many examples a test tries: a few in the quick suite, a sweep in the slow one."""

from __future__ import annotations

import pytest
from hypothesis import settings


def at_most(examples: int) -> int:
    """The number of examples of a property test with expensive examples: at most the profile's."""
    return min(examples, settings().max_examples)


def few_or_sweep(few: int, many: int, *, first: int = 0) -> pytest.MarkDecorator:
    """Parametrizes `seeds`: the first `few`, and, marked slow, the others up to `many`."""
    return pytest.mark.parametrize(
        "seeds",
        [
            pytest.param(range(first, first + few), id="few"),
            pytest.param(range(first + few, first + many), id="sweep", marks=pytest.mark.slow),
        ],
    )
