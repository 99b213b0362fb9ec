"""How much a test tries: a little in the quick suite, a sweep in the slow one."""

from __future__ import annotations

import pytest
from hypothesis import settings


def at_most(examples: int) -> int:
    """Examples of a property test whose single example is dear: those of the profile, if fewer."""
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
