"""Wraps functions of a framework so that the user sees no trace of it: not in tracebacks, warnings,
pickles or compiled graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

Begins = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Ends = Callable[[Any, Any], None]
Raises = Callable[[BaseException], None]

_MARK = "__mgpu_probe__"
_INVISIBLE = "{} (importlib._bootstrap)"
"""`warnings` counts no stack level for code in files named like this (CPython, warnings.c:
is_internal_filename), so a warning still names the line of the user's own call."""

resting = False
"""Whether hooks with the parameter `raised_at_rest` of `around` rest (`step_sampling`)."""
compiling: Callable[[], bool] = bool
"""Whether torch.compile traces the caller. `follow` replaces it by torch's own function, which is a
constant for torch.compile: the compiler drops the hook from its graph."""


def follow(compiler: ModuleType) -> None:
    """Takes `compiling` from `torch.compiler`, which is imported after the first wrapped
    modules."""
    global compiling
    compiling = getattr(compiler, "is_dynamo_compiling", compiler.is_compiling)


def around(
    original: Callable[..., Any],
    begins: Begins,
    ends: Ends,
    failed: Callable[[Exception], None],
    raises: Raises | None = None,
    *,
    raised_at_rest: Raises | None = None,
) -> Callable[..., Any]:
    """`original` with `begins(args, kwargs)` before and `ends(token, result)` after it.

    If `begins` returns None, or while `torch.compile` traces the caller, only the original is
    called. Errors of the hooks go to `failed` and never reach the caller. If the original raises,
    `raises` is called with the exception, then `ends` with None as the result; the exception goes
    on to the caller without this frame in its traceback (CPython >= 3.11).

    With `raised_at_rest`, only the original is called while `resting`, and `raised_at_rest` with
    its exception.
    """
    if hasattr(original, _MARK):
        return original

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(*args, **kwargs)
        if raised_at_rest is not None and resting:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                _drop_frame(error)
                try:
                    raised_at_rest(error)
                except Exception as trouble:
                    failed(trouble)
                raise
        try:
            token = begins(args, kwargs)
        except Exception as trouble:
            failed(trouble)
            token = None
        result = None
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _drop_frame(error)
            if token is not None:
                try:
                    if raises is not None:
                        raises(error)
                    ends(token, None)
                except Exception as trouble:
                    failed(trouble)
            raise
        if token is not None:
            try:
                ends(token, result)
            except Exception as trouble:
                failed(trouble)
        return result

    return hidden(call)


def _drop_frame(error: BaseException) -> None:
    """Drops the outermost frame of the traceback, which is the wrapper's."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def wrapped(function: Any) -> bool:
    """Whether the function was made by `around` or marked by `hidden`."""
    return hasattr(function, _MARK)


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks `function` so that warnings skip its frame and `around` does not wrap it again."""
    if isinstance(function, FunctionType):
        code = function.__code__
        function.__code__ = code.replace(co_filename=_INVISIBLE.format(code.co_filename))
    setattr(function, _MARK, True)
    return function
