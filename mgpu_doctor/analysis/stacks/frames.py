"""Helpers for stack frames: short file names, whose code a frame is, stacks without wrapper frames.

The analysis of stacks, the hang rules and the screens use them, so that frames from different hosts
and installations can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.case.job_snapshots import Frame
from mgpu_doctor.case.user_code import INSTALLED, STANDARD_LIBRARY, TORCH, is_user_code

PROBE = "/mgpu_probes/inprocess/"
"""The folder of the in-process probe, whose wrappers lie between the user's call and torch's
function."""

_WRAPPERS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("torch/distributed/c10d_logger.py", None),
    ("torch/nn/modules/module.py", frozenset({"_call_impl", "_wrapped_call_impl", "inner"})),
    ("torch/_tensor.py", frozenset({"backward"})),
    ("torch/autograd/__init__.py", frozenset({"backward", "grad", "_make_grads"})),
    ("torch/utils/_contextlib.py", None),
    ("torch/amp/autocast_mode.py", None),
    ("torch/_compile.py", None),
    ("torch/_dynamo/eval_frame.py", None),
    ("torch/optim/optimizer.py", frozenset({"wrapper", "_use_grad"})),
    ("torch/optim/lr_scheduler.py", frozenset({"wrapper"})),
    ("torch/distributed/elastic/multiprocessing/errors/__init__.py", None),
    ("contextlib.py", frozenset({"inner"})),
    ("<frozen runpy>", None),
    ("runpy.py", None),
)
"""Wrapper functions that are left out: file, and its functions (None: all)."""
_BEFORE_A_CHILD = (
    ("multiprocessing/process.py", "_bootstrap"),
    ("multiprocessing/popen_fork.py", "_launch"),
    ("torch/multiprocessing/spawn.py", "_wrap"),
)
"""Functions that start a child process. Frames outside of them belong to the parent (copied by
fork) or are the same in every child."""


def function_name(frame: Frame) -> str:
    """The function's name without its class, which Python before 3.11 does not report."""
    return frame.function.rpartition(".")[2]


def short_path(file: str) -> str:
    """A file without its installation path: `train.py`, `torch/nn/functional.py`,
    `threading.py`."""
    for known in (INSTALLED, STANDARD_LIBRARY):
        *_, rest = known.split(file)
        if rest != file:
            return rest
    match = TORCH.search(file)
    if match:
        return file[match.end() :]
    return file if file[:1] == "<" else file.rpartition("/")[2]


def is_in(frame: Frame, *files: str) -> bool:
    """Whether the frame is in one of these library files, or folders (ending in `/`)."""
    file = short_path(frame.file)
    return any(file.startswith(text) if text[-1:] == "/" else file == text for text in files)


def trail(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """A stack that can be compared with other ranks' stacks: outermost first, without wrappers,
    frames before the user's code, and frames of a parent process. `frames`: innermost first."""
    kept: list[Frame] = []
    for frame in reversed(frames):
        if any(
            function_name(frame) == last and is_in(frame, file) for file, last in _BEFORE_A_CHILD
        ):
            kept.clear()
        elif not _is_wrapper(frame):
            kept.append(frame)
    first = next((at for at, frame in enumerate(kept) if is_user_code(frame.file)), 0)
    return tuple(kept[first:])


def _is_wrapper(frame: Frame) -> bool:
    file = short_path(frame.file)
    return PROBE in frame.file or any(
        file == text and (names is None or function_name(frame) in names)
        for text, names in _WRAPPERS
    )


def user_frame(trail: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code, else of a library other than torch and Python."""
    innermost = next((frame for frame in reversed(trail) if is_user_code(frame.file)), None)
    return innermost or library_frame(trail)


def library_frame(trail: Sequence[Frame]) -> Frame | None:
    """The innermost frame of a library other than torch and Python that the user's code called."""
    return next((frame for frame in called_frames(trail) if _is_library(frame)), None)


def _is_library(frame: Frame) -> bool:
    return bool(INSTALLED.search(frame.file)) and not short_path(frame.file).startswith("torch/")


def called_frames(trail: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames below the user's own code, innermost first."""
    frames: list[Frame] = []
    for frame in reversed(trail):
        if is_user_code(frame.file):
            break
        frames.append(frame)
    return tuple(frames)


def format_location(frame: Frame | None) -> str | None:
    """The frame's file and line, as `train.py:87`."""
    if frame is None:
        return None
    return (
        short_path(frame.file) if frame.line is None else f"{short_path(frame.file)}:{frame.line}"
    )


def is_any_in(trail: Iterable[Frame], *files: str) -> bool:
    return any(is_in(frame, *files) for frame in trail)


def format_call(frame: Frame) -> str:
    """The call as `take_a_lock train.py:87`, with the file's name only."""
    file = short_path(frame.file).rpartition("/")[2] if frame.file[:1] != "<" else frame.file
    line = "" if frame.line is None else f":{frame.line}"
    return f"{function_name(frame) or frame.function} {file}{line}"
