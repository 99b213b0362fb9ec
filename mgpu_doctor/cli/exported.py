"""The files that `mgpu-doctor export` writes of a recording."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mgpu_doctor.cli.examined import examine, recording
from mgpu_doctor.cli.output import NOTHING_EXAMINED, leave, put_line

if TYPE_CHECKING:
    from mgpu_doctor.findings import Diagnosis

WRONG_USAGE = 2


class Wanted(NamedTuple):
    """Where each is to be written; None: not at all."""

    timeline: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    tensorboard: Path | None = None


ENDINGS = (".json", ".csv", ".parquet", None)
EXTRAS = {"parquet": "pyarrow", "tensorboard": "tensorboardX"}
"""What is asked for -> the package that writes it; the extra has the first one's name."""


def write_files(job: str, wanted: Wanted) -> None:
    """All that is wanted, each with a line on how large it is; leaves where one cannot be."""
    _check(wanted)
    from mgpu_doctor.cli.progress import telling

    with telling() as tell:
        tell("reading the recording")
        diagnosis = examine(recording(job))
        if wanted != Wanted(timeline=wanted.timeline) and not _has_steps(diagnosis):
            leave(f"{job} holds no step: `mgpu-doctor diagnose {job}` says why.", NOTHING_EXAMINED)
        for name, path in wanted._asdict().items():
            if path is None:
                continue
            tell(f"writing {path.name}")
            try:
                told = WRITERS[name](path, diagnosis)
            except OSError as error:
                leave(f"{path} cannot be written ({error.strerror or error}).", WRONG_USAGE)
            put_line(f"{path}: {told}")


def _has_steps(diagnosis: Diagnosis) -> bool:
    return any(len(rank.steps) for rank in (*diagnosis.case.earlier, *diagnosis.case.ranks))


def _check(wanted: Wanted) -> None:
    """Before the recording is read, which may take long."""
    for path, ending in zip(wanted, ENDINGS, strict=True):
        if path is None or ending is None:
            continue
        packed = "" if path is wanted.parquet else f" or {ending}.gz"
        name = path.name.removesuffix(".gz") if packed else path.name
        if not name.endswith(ending):
            leave(f"{path} must end in {ending}{packed}.", WRONG_USAGE)
    for name, package in EXTRAS.items():
        if getattr(wanted, name) is not None and find_spec(package) is None:
            leave(
                f"--{name} needs {package}, which is missing: "
                f"{sys.executable} -m pip install 'mgpu-doctor[{name}]'",
                NOTHING_EXAMINED,
            )


def _timeline(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export.files import timeline, writing

    return _size(writing.write(path, timeline.lines(diagnosis)))


def _csv(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export.files import table, writing

    return _size(writing.write(path, table.lines(diagnosis.case)))


def _parquet(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export.files import parquet

    return _size(parquet.write(path, diagnosis.case))


def _tensorboard(path: Path, diagnosis: Diagnosis) -> str:
    from mgpu_doctor.export.files import scalars

    written, known = scalars.write(path, diagnosis)
    return f"{written} of {known} ranks; look at it with `tensorboard --logdir {path}`"


def _size(count: int) -> str:
    from mgpu_doctor.report import text

    return text.size(count)


WRITERS: dict[str, Callable[[Path, Diagnosis], str]] = {
    "timeline": _timeline,
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
}
