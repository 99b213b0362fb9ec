"""What `diagnose` and `report` share: from what the user names to a diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_doctor.cli.output import NOTHING_EXAMINED, leave

if TYPE_CHECKING:
    from mgpu_doctor.findings import Diagnosis

START_ONE = "start a job with `mgpu-doctor run -- COMMAND`"


def examine(recording: Path) -> Diagnosis:
    """The diagnosis of a recording, live or finished; leaves with exit code 3 where it is none."""
    from mgpu_doctor.case.load import NotARecording, load_recording
    from mgpu_doctor.cli.progress import telling
    from mgpu_doctor.cli.settings import settings
    from mgpu_doctor.diagnose import diagnose

    chosen = settings()
    try:
        with telling() as tell:
            tell(f"examining {recording.name}")
            return diagnose(load_recording(recording), chosen)
    except NotARecording as error:
        leave(str(error), NOTHING_EXAMINED)
    except OSError as error:
        leave(f"{recording} cannot be read ({error.strerror}).", NOTHING_EXAMINED)


def recording(reference: str) -> Path:
    """The folder that `reference` names; leaves with exit code 3 where there is none."""
    from mgpu_doctor.recording.home import LATEST, find, home

    folder = find(reference)
    if folder is not None:
        return folder
    if reference == LATEST:
        leave(f"no recording is kept in {home()} yet: {START_ONE}.", NOTHING_EXAMINED)
    path = Path(reference)
    if not path.is_dir():
        leave(f"{_why_not(path)}: name a recording's folder, its id or `latest`.", NOTHING_EXAMINED)
    return path


def _why_not(path: Path) -> str:
    if path.exists():
        return f"{path} is a file, which `mgpu-doctor diagnose {path}` examines"
    if path.name == str(path) and path.name.isdigit():
        return f"process {path} is no recording, but `mgpu-doctor diagnose {path}` examines it"
    if str(path) == "-":
        return "standard input is no recording, but `mgpu-doctor diagnose -` reads a log from it"
    return f"{path} does not exist"
