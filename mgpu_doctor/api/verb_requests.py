"""What the verbs `diagnose`, `compare` and `plan` and the Python API do alike, before anything is
shown. A request that cannot be carried out raises `DoctorError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mgpu_doctor.errors import NOTHING_EXAMINED, WRONG_USAGE, DoctorError

if TYPE_CHECKING:
    from mgpu_doctor.analysis.comparing.comparison import Comparison, LeftOut
    from mgpu_doctor.analysis.memory.device_memory import Gpu
    from mgpu_doctor.analysis.memory.memory_plan import Plan, Settings
    from mgpu_doctor.case.model import Case
    from mgpu_doctor.findings import Diagnosis
    from mgpu_doctor.plan.planned import Planned
    from mgpu_doctor.plan.subject import Subject

Tell = Callable[[str], None]
"""Called with what is being done, for a progress line."""
Choice = TypeVar("Choice", bound=Enum)
START_A_JOB = "start a job with `mgpu-doctor run -- COMMAND`"
MAX_RECORDINGS = 64
"""Recordings that can be compared at once."""
HAS_FINDINGS = 1


# --- diagnose ----------------------------------------------------------------------------------


def diagnose_subjects(subjects: Sequence[str], tell: Tell) -> list[Diagnosis]:
    """A diagnosis for each job that the subjects name; without any, for each running job."""
    from mgpu_doctor.examine.case_sources import load_cases

    return diagnose_cases(partial(load_cases, subjects), tell)


def diagnose_cases(load: Callable[[Tell], list[Case]], tell: Tell) -> list[Diagnosis]:
    """A diagnosis for each case that `load` returns; it may raise `UnknownSubject`."""
    from mgpu_doctor.examine.subjects import UnknownSubject
    from mgpu_doctor.recording.second_process import load_meanwhile
    from mgpu_doctor.settings_files import settings

    chosen = settings()
    load_meanwhile("mgpu_doctor.diagnosis")
    try:
        cases = load(tell)
    except UnknownSubject as error:
        raise DoctorError(str(error), NOTHING_EXAMINED) from None
    from mgpu_doctor.diagnosis import diagnose

    tell("diagnosing")
    return [diagnose(case, chosen) for case in cases]


def find_exit_code(diagnosis: Diagnosis) -> int:
    """The exit code of `mgpu-doctor diagnose` for one job."""
    from mgpu_doctor.findings import Severity

    if any(finding.severity is not Severity.INFO for finding in diagnosis.findings):
        return HAS_FINDINGS
    case = diagnosis.case
    examined = diagnosis.ranks or case.snapshots or case.subject.kind == "log"
    return 0 if examined else NOTHING_EXAMINED


def find_recording(reference: str) -> Path:
    """The folder of the recording `reference`: its folder, its id, or `latest`."""
    from mgpu_doctor.recording.home import LATEST, find, home, suggest_recording

    folder = find(reference)
    if folder is not None:
        return folder
    if reference == LATEST:
        sentence = f"there are no recordings in {home()} yet: {START_A_JOB}."
        raise DoctorError(sentence, NOTHING_EXAMINED)
    path = Path(reference)
    if not path.is_dir():
        hint = "" if path.exists() else suggest_recording(reference)
        help_text = hint or "Name a recording: its folder, its id, or `latest`."
        raise DoctorError(f"{_explain_missing(path)}. {help_text}", NOTHING_EXAMINED)
    return path


def _explain_missing(path: Path) -> str:
    if path.exists():
        return f"{path} is a file, not a recording: `mgpu-doctor diagnose {path}` examines it"
    if path.name == str(path) and path.name.isdigit():
        return f"{path} is a process, not a recording: `mgpu-doctor diagnose {path}` examines it"
    if str(path) == "-":
        return "standard input is not a recording: `mgpu-doctor diagnose -` reads a log from it"
    return f"{path} does not exist"


# --- compare -----------------------------------------------------------------------------------


def find_recordings(references: Sequence[str]) -> list[Path]:
    """The folders of all recordings that are named, each once; at least two."""
    from mgpu_doctor.recording.home import find, runs

    folders: dict[Path, Path] = {}  # keys: resolved
    for reference in references:
        contained: list[Path] = []
        if find(reference) is None:
            folder_of_runs = Path(reference) if Path(reference).is_dir() else runs() / reference
            contained = find_recordings_in(folder_of_runs)
        for folder in contained or [find_recording(reference)]:
            folders.setdefault(folder.resolve(), folder)
    if len(folders) < 2:
        raise DoctorError(
            "name at least two recordings, or a folder that contains several.", WRONG_USAGE
        )
    if len(folders) > MAX_RECORDINGS:
        raise DoctorError(
            f"{len(folders)} recordings are too many: the limit is {MAX_RECORDINGS}.", WRONG_USAGE
        )
    return list(folders.values())


def find_recordings_in(folder: Path) -> list[Path]:
    """The recordings directly below a folder, sorted by name."""
    from mgpu_doctor.recording.home import is_recording

    try:
        return sorted(path for path in folder.iterdir() if is_recording(path))
    except OSError:
        return []


def compare_recordings(folders: Sequence[Path], tell: Tell) -> Comparison | tuple[LeftOut, ...]:
    """The comparison of these recordings, or why there is none."""
    from mgpu_probes.outside.untrusted_files import within_budget

    from mgpu_doctor.analysis.comparing.comparison import compare

    def load(name: str, folder: Path) -> Case | str:
        tell(f"reading {name}")
        return _load_case(folder)

    with within_budget():
        return compare(
            (name, load(name, folder))
            for name, folder in zip(shorten_names(folders), folders, strict=True)
        )


def require_comparison(compared: Comparison | tuple[LeftOut, ...]) -> Comparison:
    """The comparison, if there is one."""
    if isinstance(compared, tuple):
        raise DoctorError(_explain_no_comparison(compared), NOTHING_EXAMINED)
    return compared


def _load_case(folder: Path) -> Case | str:
    """The case of a recording, or why it cannot be read."""
    from mgpu_doctor.case.recording_case import NotARecording, load_recording

    try:
        return load_recording(folder)
    except NotARecording as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def shorten_names(folders: Sequence[Path]) -> list[str]:
    """The names of folders, with as many parents as needed to make them different."""
    resolved = [folder.resolve() for folder in folders]
    for parts in (1, 2):
        short = ["/".join(folder.parts[-parts:]) for folder in resolved]
        if len(set(short)) == len(short):
            return short
    return [str(folder) for folder in resolved]


def _explain_no_comparison(left_out: tuple[LeftOut, ...]) -> str:
    from mgpu_doctor.report.text import line

    reasons = "; ".join(
        f"{line(unusable.name)}: {line(unusable.reason)}" for unusable in left_out[:3]
    )
    rest = f"; and {len(left_out) - 3} more" if left_out[3:] else ""
    return f"fewer than two of the runs can be compared ({reasons.rstrip('.')}{rest})."


# --- plan --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """The options of `mgpu-doctor plan`, as the user gives them. `limit`: seconds that tracing may
    take."""

    name: str
    gpu: str | None = None
    ranks: int | None = None
    strategy: str | None = None
    model: str | None = None
    batch: int | None = None
    accumulate: int = 1
    precision: str = "fp32"
    checkpointing: str = "none"
    optimizer: str = "adamw"
    limit: float = 120
    fixes: bool = False


MOST_SAMPLES, MOST_ACCUMULATE, MOST_RANKS, MOST_SECONDS = 1 << 24, 256, 1 << 20, 86_400
"""The largest values of `batch`, `accumulate`, `ranks` and `limit`; the least is 1."""


def plan_memory(options: PlanOptions, tell: Tell) -> Planned:
    """The memory plan."""
    from mgpu_doctor.analysis.memory.memory_plan import (
        Checkpointing,
        Optimizer,
        Precision,
        Settings,
    )
    from mgpu_doctor.plan.planned import PlanRequest, make_plan
    from mgpu_doctor.plan.step_tracer import CannotPlanError
    from mgpu_doctor.plan.subject import SubjectError, find_subject
    from mgpu_doctor.report.text import line

    _check_bounds(options)
    try:
        subject = find_subject(options.name, options.model)
    except SubjectError as error:
        raise DoctorError(str(error), WRONG_USAGE) from None
    settings = Settings(
        subject.batch if options.batch is None else options.batch,
        options.accumulate,
        _parse_choice(Checkpointing, "checkpointing", options.checkpointing),
        _parse_choice(Precision, "precision", options.precision),
        _parse_choice(Optimizer, "optimizer", options.optimizer),
    )
    wanted = _choose_plan(subject, settings, options)
    request = PlanRequest(subject, wanted, _find_gpu(options.gpu), options.limit, options.fixes)
    try:
        return make_plan(request, tell)
    except CannotPlanError as error:
        raise DoctorError(line(str(error)), NOTHING_EXAMINED) from None


def _check_bounds(options: PlanOptions) -> None:
    for name, value, most in (
        ("batch", options.batch, MOST_SAMPLES),
        ("accumulate", options.accumulate, MOST_ACCUMULATE),
        ("ranks", options.ranks, MOST_RANKS),
        ("limit", options.limit, MOST_SECONDS),
    ):
        if value is not None and not 1 <= value <= most:
            raise DoctorError(f"--{name} must be from 1 to {most}, not {value}.", WRONG_USAGE)


def _find_gpu(name: str | None) -> Gpu | None:
    from mgpu_doctor.analysis.memory.device_memory import GPUS, find_gpu

    planned = None if name is None else find_gpu(name)
    if name is not None and planned is None:
        from mgpu_doctor.formatting import suggest

        hint = suggest(str(name).upper(), GPUS)
        raise DoctorError(
            f"--gpu must be a size such as 40GiB, or one of {', '.join(GPUS)}. {hint}".strip(),
            WRONG_USAGE,
        )
    return planned


def _choose_plan(subject: Subject, settings: Settings, options: PlanOptions) -> Plan:
    from mgpu_doctor.analysis.memory.memory_plan import Plan, Strategy

    ranks = options.ranks
    chosen = Strategy.DDP if ranks is not None and ranks > 1 else Strategy.SINGLE
    if options.strategy is not None:
        chosen = _parse_choice(Strategy, "strategy", options.strategy)
        if subject.strategy not in (None, chosen):
            raise DoctorError(
                f"the trainer {subject.name} has a fixed strategy: remove --strategy.", WRONG_USAGE
            )
    elif subject.strategy is not None:
        chosen = subject.strategy
        if chosen is Strategy.SINGLE and ranks not in (None, 1):
            raise DoctorError(
                f"{subject.name} has a single process: --ranks can only be 1.", WRONG_USAGE
            )
    number = ranks or (1 if chosen is Strategy.SINGLE else 2)
    return Plan(settings, chosen, number)


def _parse_choice(kind: type[Choice], option: str, value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(choice.value for choice in kind)
        raise DoctorError(
            f"--{option} must be one of {choices}, not {value}.", WRONG_USAGE
        ) from None
