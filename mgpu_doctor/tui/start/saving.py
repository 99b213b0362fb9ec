"""A diagnosis as a file, in the form that the file's name asks for."""

from __future__ import annotations

from pathlib import Path

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.recording.write import write_whole
from mgpu_doctor.report import html, json, markdown, text

ENDINGS = (".html", ".md", ".json")


class NotSavedError(Exception):
    """Its text is one sentence that says why."""


def default_name(diagnosis: Diagnosis) -> str:
    """A name that the working folder is likely not to have yet."""
    told = "".join(one if one.isalnum() or one in "-_" else "-" for one in diagnosis.case.job.id)
    return f"mgpu-doctor-{text.cut(told, 60).replace('…', '-') or 'job'}.html"


def check(name: str) -> Path:
    """Where a report of that name goes. Raises `NotSavedError`."""
    path = Path(name.strip()).expanduser()
    if path.suffix.lower() not in ENDINGS or not path.stem:
        raise NotSavedError("the name must end in .html, .md or .json.")
    if path.is_dir():
        raise NotSavedError(f"{path} is a folder.")
    return path


def save(diagnosis: Diagnosis, path: Path, *, overwrite: bool) -> None:
    """Write the report (0600). Raises `NotSavedError`, also where the file is there and may not be
    overwritten."""
    if path.exists() and not overwrite:
        raise NotSavedError(f"{path} is there already.")
    try:
        write_whole(path, _rendered(diagnosis, path.suffix.lower()).encode())
    except OSError as error:
        raise NotSavedError(f"{path} cannot be written ({error.strerror}).") from None


def _rendered(diagnosis: Diagnosis, ending: str) -> str:
    if ending == ".html":
        return html.render(diagnosis)
    return json.render(diagnosis) if ending == ".json" else markdown.render(diagnosis)
