"""Comparable frames: whose code they are, and stacks without wrapper frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.case.job_snapshots import Frame
from mgpu_doctor.case.user_code import INSTALLED, STANDARD_LIBRARY, TORCH, is_user_code

PROBE = "/mgpu_probes/inprocess/"
"""Our own probe, whose wrapper is between the user's call and torch's function."""

_SILENT: tuple[tuple[str, frozenset[str] | None], ...] = (
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
"""Wrappers: by file, all functions or these."""
_BEFORE_A_CHILD = (
    ("multiprocessing/process.py", "_bootstrap"),
    ("multiprocessing/popen_fork.py", "_launch"),
    ("torch/multiprocessing/spawn.py", "_wrap"),
)
"""All that lies outside of these is the parent's, copied by fork, or the same in every child."""


def name(frame: Frame) -> str:
    """The function without its class, which Python before 3.11 does not report."""
    return frame.function.rpartition(".")[2]


def short(file: str) -> str:
    """A file as people call it: `train.py`, `torch/nn/functional.py`, `threading.py`."""
    for known in (INSTALLED, STANDARD_LIBRARY):
        *_, rest = known.split(file)
        if rest != file:
            return rest
    match = TORCH.search(file)
    if match:
        return file[match.end() :]
    return file if file[:1] == "<" else file.rpartition("/")[2]


def within(frame: Frame, *files: str) -> bool:
    """Whether the frame is of one of these files of a library, or folders (ending in `/`)."""
    file = short(frame.file)
    return any(file.startswith(text) if text[-1:] == "/" else file == text for text in files)


def trail(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """A stack that can be compared with others': outermost first, without wrappers, without what
    started the program, and without a parent's frames. `frames`: innermost first."""
    kept: list[Frame] = []
    for frame in reversed(frames):
        if any(name(frame) == last and within(frame, file) for file, last in _BEFORE_A_CHILD):
            kept.clear()
        elif not _silent(frame):
            kept.append(frame)
    first = next((at for at, frame in enumerate(kept) if is_user_code(frame.file)), 0)
    return tuple(kept[first:])


def _silent(frame: Frame) -> bool:
    file = short(frame.file)
    return PROBE in frame.file or any(
        file == text and (names is None or name(frame) in names) for text, names in _SILENT
    )


def place(trail: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code, else of a library other than torch and Python."""
    innermost = next((frame for frame in reversed(trail) if is_user_code(frame.file)), None)
    return innermost or foreign(trail)


def foreign(trail: Sequence[Frame]) -> Frame | None:
    """The innermost frame of a library other than torch and Python that the user's code called."""
    return next((frame for frame in inner(trail) if _foreign(frame)), None)


def _foreign(frame: Frame) -> bool:
    return bool(INSTALLED.search(frame.file)) and not short(frame.file).startswith("torch/")


def inner(trail: Sequence[Frame]) -> tuple[Frame, ...]:
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
    return short(frame.file) if frame.line is None else f"{short(frame.file)}:{frame.line}"


def anywhere(trail: Iterable[Frame], *files: str) -> bool:
    return any(within(frame, *files) for frame in trail)


def call(frame: Frame) -> str:
    """`take_a_lock train.py:87`, the file without its folders."""
    file = short(frame.file).rpartition("/")[2] if frame.file[:1] != "<" else frame.file
    line = "" if frame.line is None else f":{frame.line}"
    return f"{name(frame) or frame.function} {file}{line}"
