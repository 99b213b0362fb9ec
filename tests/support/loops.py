"""Tests a property of hundreds of values in one test, which names all values that fail.

pytest spends some milliseconds on each parametrised case: minutes for thousands of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def over(
    names: str, values: Iterable[Any], label: Callable[[Any], str] = repr
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but as a single test that runs the check with every value.

    `names`: the parameters, separated by commas. If values fail, the test lists each by its
    `label`, with the reason.
    """
    parts = [name.strip() for name in names.split(",")]
    tried = list(values)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            failed: dict[str, AssertionError] = {}
            for value in tried:
                given = value if len(parts) > 1 else (value,)
                try:
                    check(**dict(zip(parts, given, strict=True)), **fixtures)
                except AssertionError as error:
                    failed[label(value)] = error
            if failed:
                why = "\n\n".join(f"{name}: {error}" for name, error in failed.items())
                raise AssertionError(f"{len(failed)} of {len(tried)} failed\n{why}")

        left = [
            parameter
            for name, parameter in inspect.signature(check).parameters.items()
            if name not in parts
        ]
        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.__module__, test.__qualname__ = check.__module__, check.__qualname__
        test.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        test.pytestmark = list(getattr(check, "pytestmark", []))  # type: ignore[attr-defined]
        return test

    return decorate
