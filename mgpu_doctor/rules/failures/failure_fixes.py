"""What to do once a rank has failed, by how it failed."""

from __future__ import annotations

import signal

from mgpu_doctor.analysis.postmortem.exception_texts import in_backward
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.case.model import Error, Job
from mgpu_doctor.findings import Fix
from mgpu_doctor.rules.failures import failure_text


def fixes_of(failure: RankFailure, job: Job) -> tuple[Fix, ...]:
    """The fixes for a failed rank, with commands for the job's launcher."""
    if failure.kind is FailureKind.SIGNAL:
        return (_TIDY,) if failure.aborted_leaving else _for_crash(failure, job)
    if failure.kind in (FailureKind.KILLED, FailureKind.VANISHED):
        return _for_kill(failure)
    if failure.error is not None:
        return (_open(failure.error), *([_ANOMALY] if in_backward(failure.error) else []))
    return (_show_the_exception(job, seen=failure.last_step is not None),)


_TIDY = Fix(
    "end-the-group",
    "End the process group before the script ends",
    "At its end, call `del model, optimizer; gc.collect()` (a wrapped model and its hooks hold the "
    "group), then `torch.distributed.destroy_process_group()`. `torch._dynamo` holds it, too, "
    "unless it is imported before the group is created.",
)


def _for_crash(failure: RankFailure, job: Job) -> tuple[Fix, ...]:
    faulthandler = Fix(
        "faulthandler",
        "Find the Python line at which it crashes",
        f"Run it again as `PYTHONFAULTHANDLER=1 {failure_text.command_of(job)}`: the crashing rank "
        "prints its Python stack to standard error.",
    )
    if failure.signal == signal.SIGBUS:
        return (
            Fix(
                "shared-memory",
                "Make room in /dev/shm",
                "`df -h /dev/shm` shows its size; in Docker start with `--shm-size=16g`, or call "
                "`torch.multiprocessing.set_sharing_strategy('file_system')` first.",
            ),
            faulthandler,
        )
    native = Fix(
        "native-stack",
        "Get the native stack",
        "`ulimit -c unlimited`, run it again, then `coredumpctl gdb` (or `gdb python CORE`) and "
        "`bt`; `python -m torch.utils.collect_env` shows mismatched versions.",
    )
    return (faulthandler, native)


def _for_kill(failure: RankFailure) -> tuple[Fix, ...]:
    on = f" on {failure.host}" if failure.host else ""
    return (
        Fix(
            "who-killed",
            "Find out who sent the signal",
            f"`dmesg -T | grep -iE 'out of memory|killed process'` (or `journalctl -k`){on} names "
            "the OOM killer's victims; under Slurm `sacct -j JOB --format=State,MaxRSS,ExitCode`, "
            "in Kubernetes `kubectl describe pod` (OOMKilled).",
        ),
        Fix(
            "less-memory",
            "If memory ran out, use less host memory",
            "Fewer or lighter data-loader workers (`num_workers`, `prefetch_factor`), no copy of "
            "the data set in each rank (memory-map it), or a larger limit.",
        ),
    )


def _open(error: Error) -> Fix:
    where = f"{error.file}:{error.line}" if error.file else "the line that the traceback names"
    return Fix(
        "fix-the-line",
        f"Fix {failure_text.place(error) or 'what raised the exception'}",
        f"Look at {where}{f', in {error.function}()' if error.function else ''}. The ranks that "
        "lost their connection afterwards need no change.",
    )


_ANOMALY = Fix(
    "anomaly-mode",
    "Find the forward line whose gradient failed",
    "Put `torch.autograd.set_detect_anomaly(True)` at the top of the script for one run: it is "
    "slow, but also prints the traceback of the forward operation.",
)


def _show_the_exception(job: Job, *, seen: bool) -> Fix:
    """The fix to get a reason printed. `seen`: an exception of this rank would be known."""
    if job.launcher == "torchrun" and not seen:
        how = (
            "Put `@record` (from torch.distributed.elastic.multiprocessing.errors) above the "
            "function that the script calls first, and run it again with `torchrun --tee 3 "
            "--log-dir logs …`: logs/ then holds each rank's output and traceback."
        )
    else:
        how = (
            "Search the script and its libraries for `SystemExit`, `exit(` and `os._exit`; run "
            "that rank alone under `python -X dev` to see which code calls it."
        )
    return Fix("show-why", "Find out why the rank exits", how)
