"""A file system was full: /dev/shm, or a disk."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable

from mgpu_doctor.analysis.postmortem.child_processes import (
    ended_children,
    ending_of,
    parse_lost_workers,
)
from mgpu_doctor.analysis.postmortem.exception_texts import SystemRefusal, parse_system_error
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.case.ending_records import Place
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Evidence, Fix
from mgpu_doctor.formatting import format_bytes, format_share
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.specific_failures import ERRNO, Reason, process_of, rule
from mgpu_doctor.rules.rule import Rule

_SHORT_WRITE = re.compile(r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+")
NEARLY_FULL = 0.1
"""Largest free share of a file system that counts as nearly full: samples are one second apart,
and the write that failed may have been large."""
TINY_SHM = 64 << 20
"""Docker's default size of /dev/shm (`docker run --help`)."""


def _shm(failure: RankFailure, case: Case) -> Reason | None:
    refused = parse_system_error(failure.error)
    room = _place(failure, case, lambda place: "shm" in place.roles)
    if refused is not None and refused.number == errno.ENOSPC and refused.shared:
        return _shm_reason(0.97, "could not share a tensor", room, "had no room left")
    worker = _bus_error_of_a_worker(failure, case)
    if not worker and not (failure.kind is FailureKind.SIGNAL and failure.signal == signal.SIGBUS):
        return None
    what = "lost a data-loader worker to SIGBUS" if worker else "crashed with SIGBUS"
    if room is None:
        return _shm_reason(0.75, what, None, "was full") if worker else None
    if room.least.free <= NEARLY_FULL * room.least.size:
        return _shm_reason(0.97, what, room, "was full")
    if room.now.size <= TINY_SHM:
        return _shm_reason(0.9 if worker else 0.8, what, room, "is small")
    return None  # there was room: a mapped file that was cut short ends a process like this, too


def _bus_error_of_a_worker(failure: RankFailure, case: Case) -> bool:
    lost_workers = parse_lost_workers(failure)
    by_text = lost_workers is not None and (lost_workers.signal or "").startswith("Bus error")
    return by_text or bool(failure.error and ended_children(failure, case, signal.SIGBUS))


def _shm_reason(confidence: float, what: str, room: Place | None, state: str) -> Reason:
    known = f" ({format_bytes(room.now.size)})" if room is not None else ""
    evidence = () if room is None else _of_place(room)
    return Reason(
        confidence,
        f"{what}: /dev/shm{known} {state}",
        "Data-loader workers, NCCL and `share_memory_()` pass tensors through files in /dev/shm. "
        "When it is full, the kernel cannot provide a mapped page and sends SIGBUS to the process "
        "that accesses it.",
        (
            Fix(
                "more-shm",
                "Make /dev/shm larger",
                "Docker: `--shm-size=16g` or `--ipc=host`; Kubernetes: an `emptyDir` with `medium: "
                "Memory` mounted at /dev/shm; elsewhere `mount -o remount,size=16G /dev/shm`.",
            ),
            Fix(
                "fewer-in-flight",
                "Keep fewer batches in flight",
                "Each rank keeps `num_workers` × `prefetch_factor` batches there: lower either, or "
                "return smaller samples (uint8 images, cropped in the worker).",
            ),
        ),
        evidence,
    )


def _disk_full(failure: RankFailure, case: Case) -> Reason | None:
    refused = parse_system_error(failure.error)
    if failure.signal == signal.SIGXFSZ or (refused and refused.number == errno.EFBIG):
        return _file_too_large(failure, case, refused)
    full = _full_place(failure, case, refused)
    if refused is not None and refused.number in (errno.ENOSPC, errno.EDQUOT):
        if not (refused.shared and refused.number == errno.ENOSPC):
            return _disk_reason(0.97, failure, refused, full)
    elif _writer_failed(failure) and full is not None:
        return _disk_reason(0.9, failure, None, full)
    return None


def _writer_failed(failure: RankFailure) -> bool:
    """Whether torch.save's writer failed. It reports only a failed write or a wrong position in
    the file (inline_container.cc, torch 2.4 to 2.13)."""
    message = failure.error.message if failure.error is not None else ""
    return "PytorchStreamWriter failed" in message or bool(_SHORT_WRITE.search(message))


def _full_place(failure: RankFailure, case: Case, refused: SystemRefusal | None) -> Place | None:
    """The full file system that the job wrote to: that of the named file, else one that the job is
    known to use, else one that filled up meanwhile."""
    file = refused.file if refused is not None else None
    if file is not None and file.startswith("/"):
        ending = ending_of(failure, case)
        above = [place for place in (ending.places if ending else ()) if _holds(place, file)]
        nearest = max(above, key=lambda place: len(place.path), default=None)
        return nearest if nearest is not None and _is_full(nearest) else None
    return _place(failure, case, lambda place: _is_full(place) and place.in_use) or _place(
        failure, case, lambda place: _is_full(place) and place.least.free < place.before.free
    )


def _holds(place: Place, file: str) -> bool:
    """Paths of places are mount points, or folders of the job on a file system of their own."""
    return file.startswith(place.path.rstrip("/") + "/")


def _is_full(place: Place) -> bool:
    least = place.least
    few = least.free <= min(NEARLY_FULL * least.size, 1 << 30)
    return "shm" not in place.roles and (few or least.inodes_free == 0)


def _disk_reason(
    confidence: float, failure: RankFailure, refused: SystemRefusal | None, full: Place | None
) -> Reason:
    quota = refused is not None and refused.number == errno.EDQUOT
    file = refused.file if refused is not None else None
    what = "used up its disk quota" if quota else "found the disk full"
    at = failure_text.place(failure.error) if failure.error is not None else None
    where = f"`{file}`" if file else f"a file on {full.path}" if full else "a file"
    inodes = full is not None and full.least.inodes_free == 0
    command = (
        "`quota -s`" if quota else f"`df -{'i' if inodes else 'h'} {full.path if full else '.'}`"
    )
    return Reason(
        confidence,
        f"{what}{f' at {at}' if at else ''}" + (f" while it wrote {file}" if file else ""),
        f"The system had no room left to write {where}"
        + (": no inode was free; many small files use them up." if inodes else "."),
        (
            Fix(
                "make-room",
                "Free space, or write elsewhere",
                f"{command} shows what is left; delete old checkpoints and logs, or keep only the "
                "newest (`save_total_limit`, `save_top_k`).",
            ),
            Fix(
                "safe-checkpoints",
                "Discard the checkpoint that was being written",
                "It is incomplete. Write to a temporary name and rename it when complete: then a "
                "full disk leaves the previous one intact.",
            ),
        ),
        () if full is None else _of_place(full),
    )


def _file_too_large(failure: RankFailure, case: Case, refused: SystemRefusal | None) -> Reason:
    process = process_of(failure, case)
    soft = process.limits.get("file_size", (None, None))[0] if process else None
    source = "/proc/PID/limits (ulimit -f)"
    return Reason(
        0.97 if soft is not None or failure.signal is not None else 0.9,
        "exceeded its file size limit" + (f": {refused.file}" if refused and refused.file else ""),
        "`ulimit -f` limits how large a file may become"
        + (f", here to {format_bytes(soft)}" if soft is not None else "")
        + "; some file systems have their own limit (FAT: 4 GiB).",
        (
            Fix(
                "file-size",
                "Lift the limit, or write smaller files",
                "`ulimit -f unlimited` before the job, or save sharded checkpoints.",
            ),
        ),
        (Evidence("file size limit", soft, "bytes", source=source),) if soft else (),
    )


def _place(failure: RankFailure, case: Case, wanted: Callable[[Place], bool]) -> Place | None:
    """The fullest of the places that `wanted` selects."""
    ending = ending_of(failure, case)
    places = [place for place in ending.places if wanted(place)] if ending is not None else []
    return min(
        places, key=lambda p: p.least.free / p.least.size if p.least.size else 1.0, default=None
    )


def _of_place(place: Place) -> tuple[Evidence, ...]:
    source = f"statvfs of {place.path}"
    evidence = [
        Evidence(f"least free on {place.path}", place.least.free, "bytes", place.now.size, source)
    ]
    if place.least.inodes_free == 0:
        evidence.append(Evidence("free inodes there", 0, "inodes", place.least.inodes, source))
    return tuple(evidence)


RULES: tuple[Rule, ...] = (
    rule(
        "shm-exhausted",
        _shm,
        family="memory",
        summary="/dev/shm was full, and a rank or one of its data-loader workers crashed.",
        measured="SIGBUS of a rank or of its data-loader worker while /dev/shm (as the job sees "
        "it) was nearly full in a sample or is no larger than Docker's default; or the system's "
        "error 28 for a file of shared memory. SIGBUS with room in /dev/shm is `failed-signal`.",
        thresholds=f"Nearly full: at most {format_share(NEARLY_FULL)} left. Small: "
        f"{TINY_SHM >> 20} MiB, Docker's default. A worker's SIGBUS if the size of /dev/shm is "
        "unknown: confidence 0.75.",
        fixes="`--shm-size=16g` or `--ipc=host`; fewer workers, less prefetched.",
    ),
    rule(
        "failed-disk-full",
        _disk_full,
        summary="A disk, quota or file size limit was exhausted, often while a checkpoint was "
        "saved.",
        measured=ERRNO + "28 (no space), 122 (quota) or 27 (file too large), or SIGXFSZ; or "
        "torch.save's writer failed while a file system that the job writes to had no space or no "
        "inode left.",
        thresholds=f"No room: at most {format_share(NEARLY_FULL)} and 1 GiB free in a sample; "
        "counts only together with a write that failed.",
        fixes="Free space or write elsewhere; discard the checkpoint that was being written.",
    ),
)
