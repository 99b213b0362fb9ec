"""Opens this package's screens over a live screen, which then shows the chosen job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import App

from mgpu_doctor.rules.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import DeviceSample
    from mgpu_doctor.findings import Diagnosis
    from mgpu_doctor.live.frame_source import Source
    from mgpu_doctor.live.machine_recorder import Recorder

Job = Path | int
"""A recording, or a process of a job that is not observed."""
Turn = Callable[[Job], None]


def open_launch(app: App[Any], turn: Turn, *, readonly: bool = False) -> None:
    """Opens the launch form; the job it starts is shown from then on."""
    from mgpu_doctor.tui.jobs.launch_screen import LaunchScreen
    from mgpu_doctor.tui.jobs.starting import Started

    def started(opened: Started | None) -> None:
        if opened is not None:
            turn(opened.recording)

    app.push_screen(LaunchScreen(readonly=readonly), started)


def open_attach(
    app: App[Any],
    turn: Turn,
    devices: Callable[[], DeviceSample | None],
    *,
    readonly: bool = False,
) -> None:
    """Opens the list of jobs; the chosen one is shown from then on."""
    from mgpu_doctor.tui.jobs.attach_screen import AttachScreen, Listed

    def chosen(job: Listed | None) -> None:
        if job is not None:
            turn(job.recording or job.pid)

    app.push_screen(AttachScreen(devices=devices, readonly=readonly), chosen)


def source_of(job: Job, settings: Settings = DEFAULTS, recorder: Recorder | None = None) -> Source:
    """Returns the source of a job's frames. `recorder`: goes on recording samples of the
    machine."""
    from mgpu_doctor.live.live_jobs import LiveJobs
    from mgpu_doctor.live.unrecorded_job import Outside

    if isinstance(job, Path):
        return LiveJobs(job, settings=settings, recorder=recorder)
    return Outside(job, settings, recorder=recorder)


def open_diagnosis(
    app: App[Any], diagnosis: Diagnosis | None, settings: Settings = DEFAULTS
) -> None:
    """Opens the full diagnosis of the job shown."""
    from mgpu_doctor.tui.jobs.diagnosis_screen import DiagnosisScreen, examination
    from mgpu_doctor.tui.keys import NO_JOB

    if diagnosis is None:
        app.notify(NO_JOB, markup=False)
    else:
        app.push_screen(DiagnosisScreen(diagnosis.case.subject.ref, examination(settings)))
