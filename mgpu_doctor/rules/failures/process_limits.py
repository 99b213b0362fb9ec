"""A process reached a limit or lacked a permission: open files, CPU time, file access."""

from __future__ import annotations

import errno
import signal

from mgpu_doctor.analysis.postmortem.exception_texts import parse_system_error
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Evidence, Fix
from mgpu_doctor.formatting import format_share
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.specific_failures import (
    ERRNO,
    Reason,
    cpu_seconds,
    process_of,
    rule,
)
from mgpu_doctor.rules.rule import Rule

SPENT = 0.9
"""Share of a CPU time limit in the last sample from which SIGKILL is taken for its end."""


def _open_files(failure: RankFailure, case: Case) -> Reason | None:
    refused = parse_system_error(failure.error)
    if refused is None or refused.number not in (errno.EMFILE, errno.ENFILE):
        return None
    process = process_of(failure, case)
    limit = process.limits.get("files", (None, None))[0] if process else None
    evidence = []
    if limit is not None:
        source = "/proc/PID/limits (ulimit -n)"
        evidence.append(Evidence("open file limit", limit, "files", source=source))
    most = process.most_files if process is not None else None
    if most is not None and limit is not None and most >= limit / 2:
        what = "most files open in a sample"
        evidence.append(Evidence(what, most, "files", limit, "/proc/PID/fd"))
    whole = refused.number == errno.ENFILE
    bound = "the whole machine may have" if whole else "one process may have"
    at = failure_text.place(failure.error) if failure.error is not None else None
    return Reason(
        0.97,
        f"had too many files open{f' at {at}' if at else ''}"
        + (f" (the limit is {limit})" if limit is not None and not whole else ""),
        f"It reached the number of files that {bound} open. Data-loader workers send each tensor "
        "as an open file; sockets, memory maps and files that are never closed count, too.",
        (
            Fix(
                "more-files",
                "Raise the limit",
                "`ulimit -n 65536` before the job (hard limit: limits.conf, systemd's "
                "`LimitNOFILE=`, Docker's `--ulimit nofile=`)."
                + (" Here: `sysctl fs.file-max`." if whole else ""),
            ),
            Fix(
                "file-system-sharing",
                "Let workers share tensors by name instead of by open file",
                "`torch.multiprocessing.set_sharing_strategy('file_system')` at the top of the "
                "script. Do not keep tensors from workers in lists.",
            ),
        ),
        tuple(evidence),
    )


def _time_limit(failure: RankFailure, case: Case) -> Reason | None:
    process = process_of(failure, case)
    soft, hard = process.limits.get("cpu_seconds", (None, None)) if process else (None, None)
    used = cpu_seconds(failure, case)
    if failure.signal == signal.SIGXCPU:
        confidence, limit = 0.97, soft
    elif failure.kind is FailureKind.KILLED and hard and used is not None and used >= SPENT * hard:
        confidence, limit = 0.85, hard
    else:
        return None
    source = "/proc/PID/limits (ulimit -t)"
    evidence = [Evidence("CPU time limit", limit, "s", source=source)] if limit else []
    if used is not None:
        evidence.append(Evidence("CPU time in the last sample", used, "s", limit, "host samples"))
    return Reason(
        confidence,
        "used up its CPU time limit"
        + (f" of {limit} s" if limit else "")
        + failure_text.after_step(failure),
        "`ulimit -t` counts the seconds of all threads together: 8 busy threads reach the limit "
        "in an eighth of the time. Login nodes of clusters often set it.",
        (
            Fix(
                "cpu-limit",
                "Run without a CPU time limit",
                "`ulimit -t unlimited` before the job; on a cluster submit it to the scheduler "
                "instead of running it on the login node.",
            ),
        ),
        tuple(evidence),
    )


def _permission(failure: RankFailure, _: Case) -> Reason | None:
    refused = parse_system_error(failure.error)
    if failure.error is None or refused is None or failure.kind is not FailureKind.EXCEPTION:
        return None
    if refused.number not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return None
    file = refused.file or "FILE"
    at = failure_text.place(failure.error)
    read_only = refused.number == errno.EROFS
    what = "wrote to a read-only file system" if read_only else "was not permitted"
    return Reason(
        0.97,
        f"{what}{f' at {at}' if at else ''}" + (f": {refused.file}" if refused.file else ""),
        f"The system denied access: {failure_text.headline(failure.error)}.",
        (
            Fix(
                "permission",
                "Give the job's user access, or use another place",
                f"`id; ls -ld {file}; namei -l {file}` show who may; in a container compare its "
                "user (`--user`) and the mount's options (`:ro`).",
            ),
        ),
    )


RULES: tuple[Rule, ...] = (
    rule(
        "failed-open-files",
        _open_files,
        summary="A rank or one of its workers had too many files open.",
        measured=ERRNO + "24 or 23, or multiprocessing's `received 0 items of ancdata`.",
        thresholds="No threshold: the system's own report decides.",
        fixes="`ulimit -n 65536`; `set_sharing_strategy('file_system')`.",
    ),
    rule(
        "failed-time-limit",
        _time_limit,
        summary="A rank used up its CPU time limit.",
        measured="SIGXCPU; or SIGKILL when the last sample before shows CPU time near its hard "
        "limit.",
        thresholds=f"Near: {format_share(SPENT)} of the hard limit, at which the kernel sends "
        "SIGKILL (setrlimit(2)).",
        fixes="`ulimit -t unlimited`; submit the job to the scheduler.",
    ),
    rule(
        "failed-permission",
        _permission,
        summary="A rank was not permitted to read, write or use something.",
        measured=ERRNO + "13, 1 or 30, or it is a PermissionError.",
        thresholds="No threshold: the system's own report decides.",
        fixes="Give the job's user access, or use another place.",
    ),
)
