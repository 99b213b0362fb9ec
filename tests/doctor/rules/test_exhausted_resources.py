"""Shared memory, disks, open files, CPU time and permissions: which ran out, and which did not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.findings import Finding
from tests.support.ending_records import (
    GIB,
    MIB,
    failure_findings,
    pid_of,
    place,
    process,
    sampled,
    with_end,
    with_ending_record,
)
from tests.support.failure_cases import AT, dead, error, failed_job, secondary_failure, terminated

WORKER = 5000
BUS_ERROR = (
    f"DataLoader worker (pid {WORKER}) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory. Please try to raise your shared memory limit."
)
NO_ROOM = "[Errno 28] No space left on device: '/scratch/run/checkpoint.pt'"
SHORT_WRITE = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
WRITER_FAILED = (
    "[enforce fail at inline_container.cc:862] . PytorchStreamWriter failed writing file data/0: "
    "file write failed"
)


def raised(kind: str, message: str) -> Case:
    return failed_job(
        [
            secondary_failure(0),
            dead(1, exit_code=1, error=replace(error(kind, message), at=AT)),
            terminated(2),
        ]
    )


def crashed(signal: int) -> Case:
    return failed_job([secondary_failure(0), dead(1, signal=signal), terminated(2)])


def single_finding(case: Case) -> Finding:
    (finding,) = failure_findings(case)
    return finding


def shm(size: int, free: int) -> tuple[object, ...]:
    return (place("/dev/shm", "shm", size, free),)


@pytest.mark.parametrize(
    ("size", "free", "confidence"),
    [(16 * GIB, 100 * MIB, 0.97), (64 * MIB, 60 * MIB, 0.9)],
)
def test_a_bus_error_of_a_worker_with_little_shared_memory(
    size: int, free: int, confidence: float
) -> None:
    finding = single_finding(
        with_ending_record(raised("RuntimeError", BUS_ERROR), places=shm(size, free))
    )
    assert finding.code == "shm-exhausted"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.confidence == pytest.approx(confidence)
    assert "lost a data-loader worker to SIGBUS: /dev/shm" in finding.title
    assert "--shm-size" in finding.fixes[0].how


def test_the_workers_exit_tells_where_its_rank_says_less() -> None:
    message = f"DataLoader worker (pid(s) {WORKER}) exited unexpectedly"
    case = with_end(raised("RuntimeError", message), WORKER, 7)
    assert single_finding(with_ending_record(case, places=shm(GIB, MIB))).code == "shm-exhausted"


def test_a_bus_error_of_a_rank_itself() -> None:
    finding = single_finding(with_ending_record(crashed(7), places=shm(GIB, 0)))
    assert finding.code == "shm-exhausted"
    assert "crashed with SIGBUS: /dev/shm (1 GiB) was full" in finding.title


def test_a_bus_error_with_room_in_shared_memory_is_a_crash() -> None:
    """A mapped data file that was cut short."""
    assert (
        single_finding(with_ending_record(crashed(7), places=shm(16 * GIB, 15 * GIB))).code
        == "failed-signal"
    )
    case = with_ending_record(raised("RuntimeError", BUS_ERROR), places=shm(16 * GIB, 15 * GIB))
    assert single_finding(case).code == "failed-exception"


def test_a_bus_error_with_nothing_known_of_shared_memory() -> None:
    assert single_finding(crashed(7)).code == "failed-signal"
    finding = single_finding(raised("RuntimeError", BUS_ERROR))
    assert finding.code == "shm-exhausted"
    assert finding.confidence == pytest.approx(0.75)


def test_no_space_for_shared_memory_is_no_full_disk() -> None:
    message = (
        "unable to allocate shared memory(shm) for file </torch_2171_404431513_0>: "
        "No space left on device (28)"
    )
    finding = single_finding(
        with_ending_record(raised("RuntimeError", message), places=shm(64 * MIB, 64 * MIB))
    )
    assert finding.code == "shm-exhausted"
    assert "could not share a tensor: /dev/shm (64 MiB) had no room left" in finding.title


def test_a_full_disk_is_reported_with_the_file_and_the_file_system() -> None:
    places = (
        place("/", "tmp", 100 * GIB, 0),
        place("/scratch", "mount", GIB, 0, before=GIB),
    )
    finding = single_finding(with_ending_record(raised("OSError", NO_ROOM), places=places))
    assert finding.code == "failed-disk-full"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    assert "found the disk full at train.py:87 while it wrote /scratch/run/checkpoint.pt" in (
        finding.title
    )
    assert "df -h /scratch`" in finding.fixes[0].how
    assert finding.evidence[0].measure == "least free on /scratch"


def test_a_disk_that_used_up_its_inodes() -> None:
    places = (place("/scratch", "written", 100 * GIB, 90 * GIB, inodes=0),)
    finding = single_finding(with_ending_record(raised("OSError", NO_ROOM), places=places))
    assert "no inode was free" in finding.cause
    assert "df -i" in finding.fixes[0].how


def test_a_quota_is_no_full_disk() -> None:
    message = "[Errno 122] Disk quota exceeded: '/home/u/checkpoint.pt'"
    finding = single_finding(raised("OSError", message))
    assert finding.code == "failed-disk-full"
    assert "used up its disk quota" in finding.title
    assert "quota -s" in finding.fixes[0].how


@pytest.mark.parametrize(
    "message", [SHORT_WRITE, WRITER_FAILED], ids=["short write", "failed writer"]
)
def test_a_failed_checkpoint_writer_counts_only_beside_a_full_file_system(message: str) -> None:
    case = raised("RuntimeError", message)
    full = (place("/scratch", "mount", GIB, 0),)
    finding = single_finding(with_ending_record(case, places=full))
    assert finding.code == "failed-disk-full"
    assert "/scratch" in finding.cause
    roomy = (place("/scratch", "written", 100 * GIB, 50 * GIB),)
    assert single_finding(with_ending_record(case, places=roomy)).code == "failed-exception"
    assert single_finding(case).code == "failed-exception"


def test_a_file_system_that_was_full_all_along_and_unused_is_not_blamed() -> None:
    """A full mount that has nothing to do with the job."""
    places = (place("/backup", "mount", GIB, 0, before=0),)
    assert single_finding(
        with_ending_record(raised("RuntimeError", SHORT_WRITE), places=places)
    ).code == ("failed-exception")
    assert single_finding(
        with_ending_record(raised("ValueError", "bad sample"), places=places)
    ).code == ("failed-exception")


@pytest.mark.parametrize(
    "case", [crashed(25), raised("OSError", "[Errno 27] File too large: '/home/u/log.txt'")]
)
def test_a_file_beyond_its_size_limit(case: Case) -> None:
    limited = process(1, limits={"file_size": (MIB, MIB)})
    finding = single_finding(with_ending_record(case, processes={limited.pid: limited}))
    assert finding.code == "failed-disk-full"
    assert "here to 1 MiB" in finding.cause
    assert "ulimit -f unlimited" in finding.fixes[0].how


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("OSError", "[Errno 24] Too many open files: '/data/shard-0.bin'"),
        ("RuntimeError", "received 0 items of ancdata"),
        (
            "RuntimeError",
            "unable to open shared memory object </torch_123_456_7> in read-write mode: Too many "
            "open files (24)",
        ),
    ],
)
def test_too_many_open_files(kind: str, message: str) -> None:
    limited = process(1, limits={"files": (1024, 4096)}, most_files=1001)
    finding = single_finding(
        with_ending_record(raised(kind, message), processes={limited.pid: limited})
    )
    assert finding.code == "failed-open-files"
    assert "(the limit is 1024)" in finding.title
    assert {(e.value, e.baseline) for e in finding.evidence} >= {(1024, None), (1001, 1024)}


def test_a_sample_far_from_the_limit_is_no_evidence() -> None:
    limited = process(1, limits={"files": (1024, 4096)}, most_files=12)
    case = raised("OSError", "[Errno 24] Too many open files: '/data/shard-0.bin'")
    finding = single_finding(with_ending_record(case, processes={limited.pid: limited}))
    assert 12 not in {e.value for e in finding.evidence}


def test_the_limit_of_cpu_time() -> None:
    limited = process(1, limits={"cpu_seconds": (3600, 7200)})
    finding = single_finding(with_ending_record(crashed(24), processes={limited.pid: limited}))
    assert finding.code == "failed-time-limit"
    assert "used up its CPU time limit of 3600 s" in finding.title


@pytest.mark.parametrize(("cpu", "code"), [(7100, "failed-time-limit"), (60, "failed-killed")])
def test_sigkill_at_the_hard_limit_of_cpu_time(cpu: float, code: str) -> None:
    limited = process(1, limits={"cpu_seconds": (7200, 7200)})
    case = with_ending_record(crashed(9), processes={limited.pid: limited})
    assert single_finding(sampled(case, {pid_of(1): GIB}, cpu=cpu)).code == code


@pytest.mark.parametrize(
    ("kind", "message", "words"),
    [
        ("PermissionError", "[Errno 13] Permission denied: '/data/x'", "not permitted"),
        ("OSError", "[Errno 30] Read-only file system: '/data/x'", "read-only file system"),
    ],
)
def test_what_is_not_permitted(kind: str, message: str, words: str) -> None:
    finding = single_finding(raised(kind, message))
    assert finding.code == "failed-permission"
    assert words in finding.title
    assert "/data/x" in finding.title


def test_a_semaphore_that_found_no_room_is_about_shared_memory() -> None:
    plain = replace(error("OSError", "[Errno 28] No space left on device"), at=AT)
    trace = "    self._semlock = _multiprocessing.SemLock(kind, value, maxvalue, name, unlink)"
    for raised_, code in (
        (plain, "failed-disk-full"),
        (replace(plain, traceback=trace), "shm-exhausted"),
        (replace(plain, message="[Errno 28] inotify watch limit reached"), "failed-exception"),
    ):
        assert (
            single_finding(
                failed_job([secondary_failure(0), dead(1, exit_code=1, error=raised_)])
            ).code
            == code
        )


def test_an_address_in_use_is_none_of_these() -> None:
    case = raised("OSError", "[Errno 98] Address already in use")
    assert single_finding(case).code == "failed-exception"


def test_what_a_worker_was_refused_is_mentioned_its_rank() -> None:
    message = (
        "Caught OSError in DataLoader worker process 3.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/site-packages/torch/worker.py", line 374, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        '  File "/home/u/data.py", line 12, in __getitem__\n    open(name)\n'
        "OSError: [Errno 24] Too many open files: '/data/shard-0.bin'\n"
    )
    finding = single_finding(raised("OSError", message))
    assert finding.code == "failed-open-files"
    assert "data.py:12" in finding.title


def test_a_terminal_that_closed_blames_no_rank() -> None:
    ranks = [dead(n, AT + n / 100, signal=15) for n in range(2)]
    case = failed_job(ranks, outcome=Outcome.KILLED, asked="SIGHUP", exit_code=1)
    finding = single_finding(case)
    assert finding.code == "failed-hangup"
    assert finding.culprits == ()
    assert "tmux" in finding.fixes[0].how
    assert "setsid" in finding.fixes[0].how


def test_one_rank_that_was_hung_up_is_named() -> None:
    case = failed_job([secondary_failure(0, AT - 0.01), dead(1, AT, signal=1), terminated(2)])
    finding = single_finding(case)
    assert finding.code == "failed-hangup"
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(("asked", "codes"), [("SIGINT", ["failed-interrupted"]), ("SIGTERM", [])])
def test_a_job_that_somebody_ended_is_at_most_worth_knowing(asked: str, codes: list[str]) -> None:
    ranks = [dead(n, AT + n / 100, signal=15) for n in range(2)]
    case = failed_job(ranks, outcome=Outcome.KILLED, asked=asked, exit_code=1)
    findings = failure_findings(case)
    assert [one.code for one in findings] == codes
    assert all(one.severity.value == "info" for one in findings)
