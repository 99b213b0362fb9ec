"""Findings from console text: causes before symptoms, and none on healthy jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mgpu_doctor.case.log_case import load_logs, signs_of
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, Now, Outcome, State
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.catalogue import OWN
from mgpu_doctor.rules.failures.log_codes import FAMILIES, SUMMARIES, family_of
from mgpu_doctor.rules.failures.log_findings import fill_groups, first_sentence
from mgpu_doctor.signatures.error_endings import WAITING
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from mgpu_doctor.signatures.signature import Role, Signature
from tests.support.failure_cases import (
    AT,
    dead,
    error,
    failed_job,
    rank,
    secondary_failure,
    terminated,
)
from tests.support.logs import RECORDED, progress, write
from tests.support.loops import over

GLOO = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [127.0.0.1]:42709. This is typically caused by a remote worker "
    "crashing. Check the logs of the remote worker before reporting an error."
)
SIZES = {"sent": "1004", "expected": "4"}
SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x128 and 64x10)"
FULL = (
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: "
    "No space left on device (28)"
)
SLURM_OOM = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9209586.0. Some of your processes "
    "may have been killed by the cgroup out-of-memory handler."
)


def raised(last: str, label: str = "", line: int = 12) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/user/train.py", line 40, in <module>',
        f'  File "/home/user/train.py", line {line}, in f',
        "    f()",
        last,
    ]
    return [f"{label}{text}" for text in lines]


def test_ranks_whose_collectives_differ_are_reported_with_the_calls_they_were_in() -> None:
    text = "enforce fail at /x/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. "
    said = f"  what():  [{text}1004 vs 4. Received data size doesn't match expected size."
    sign = LogMatch("gloo-size-mismatch", None, "console", 5, said, None, values=SIZES)
    where = ["all_reduce /home/me/model.py:8"] * 3 + ["broadcast /home/me/train.py:87"]
    nows = [Now("wait", AT, 28, site, 804) for site in where]
    ranks = [dead(n, signal=6 if n == 3 else 15, now=now) for n, now in enumerate(nows)]
    (found,) = diagnose(replace(failed_job(ranks), signs=(sign,))).findings[:1]
    assert found.code == "hang-collective-mismatch"
    told = [(item.measure, item.value, item.where) for item in found.evidence if item.where]
    assert told[-2:] == [
        ("rank 3 was in", "broadcast", "/home/me/train.py:87"),
        ("ranks 0-2 were in", "all_reduce", "/home/me/model.py:8"),
    ]


def findings(lines: Sequence[str], tmp_path: Path) -> list[Finding]:
    return list(diagnose(load_logs([str(write(tmp_path / "x.log", lines))])).findings)


def warnings_and_culprits(found: Sequence[Finding]) -> list[tuple[str, list[int | None]]]:
    return [
        (one.code, [culprit.rank for culprit in one.culprits])
        for one in found
        if one.severity is not Severity.INFO
    ]


@over("signature", SIGNATURES, lambda signature: signature.id)
def test_every_example_at_the_end_of_a_log_gives_its_finding(
    signature: Signature, tmp_path: Path
) -> None:
    lines = signature.example.split("\n") * signature.least
    if signature.needs_failure:
        assert findings([*progress(30), *lines], tmp_path) == []
        lines = [*raised("ValueError: no such layer"), *lines]
    found = findings([*progress(30), *lines], tmp_path)
    assert signature.code in {one.code for one in found}
    one = next(one for one in found if one.code == signature.code)
    assert one.fixes
    assert len(one.title) <= 200
    if signature.role is Role.CAUSE:
        assert any(piece.where for piece in one.evidence)
    assert "{" not in fill_groups(signature.meaning, signature, _empty(signature))


@over("signature", SIGNATURES, lambda signature: signature.id)
@pytest.mark.slow
def test_no_example_of_a_cause_is_blamed_where_training_went_on(
    signature: Signature, tmp_path: Path
) -> None:
    found = findings([*progress(3), *signature.example.split("\n"), *progress(1000)], tmp_path)
    assert not [one for one in found if one.severity is Severity.CRITICAL]


@pytest.mark.parametrize("path", sorted((RECORDED / "logs").glob("noisy-*")), ids=lambda p: p.stem)
@pytest.mark.parametrize("more", [0, 500])
def test_healthy_logs_give_nothing(path: Path, more: int, tmp_path: Path) -> None:
    lines = [*path.read_text(encoding="utf-8").split("\n"), *progress(more)]
    assert findings(lines, tmp_path) == []


def test_the_cause_is_named_and_those_that_lost_their_peer_are_victims(tmp_path: Path) -> None:
    lines = [*progress(9)]
    for other in (3, 0, 1):
        lines += raised(GLOO, f"[rank{other}]: ")
    lines += raised(FULL, "[rank2]: ")
    (finding,) = findings(lines, tmp_path)
    assert (finding.code, finding.severity) == ("shm-exhausted", Severity.CRITICAL)
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)
    assert f"{tmp_path}/x.log:29" in [piece.where for piece in finding.evidence]


def test_the_exception_that_came_first_counts(tmp_path: Path) -> None:
    lines = raised(SHAPES, "[rank3]: ") + raised(FULL, "[rank1]: ") + raised(GLOO, "[rank0]: ")
    assert warnings_and_culprits(findings(lines, tmp_path)) == [("failed-shape-mismatch", [3])]
    lines = raised(FULL, "[rank1]: ") + raised(SHAPES, "[rank3]: ") + raised(GLOO, "[rank0]: ")
    assert warnings_and_culprits(findings(lines, tmp_path)) == [("shm-exhausted", [1])]


def test_an_exception_without_a_signature_that_came_first_is_not_passed_over(
    tmp_path: Path,
) -> None:
    lines = raised("KeyError: 'labels'", "[rank1]: ") + raised(SHAPES, "[rank3]: ")
    assert warnings_and_culprits(findings(lines, tmp_path)) == [("failed-exception", [1])]


def test_ranks_that_show_the_same_share_the_blame(tmp_path: Path) -> None:
    others = [line for n in (0, 1, 4, 5) for line in raised(GLOO, f"[rank{n}]: ")]
    lines = [line for n in (2, 3) for line in raised(FULL, f"[rank{n}]: ")] + others
    assert warnings_and_culprits(findings(lines, tmp_path)) == [("shm-exhausted", [2, 3])]


def test_what_every_rank_shows_is_everybodys(tmp_path: Path) -> None:
    lines = [line for n in range(4) for line in raised(SHAPES, f"[rank{n}]: ")]
    (finding,) = findings(lines, tmp_path)
    assert finding.title.startswith("Every rank: ")
    assert [culprit.rank for culprit in finding.culprits] == [0, 1, 2, 3]
    assert finding.victims == ()


@pytest.mark.parametrize(
    "signature",
    [signature for signature in SIGNATURES if signature.mutual],
    ids=lambda signature: signature.id,
)
def test_who_tells_of_a_disagreement_is_not_to_blame(signature: Signature, tmp_path: Path) -> None:
    lines = raised(signature.example.split("\n")[0], label="[rank1]: ")
    (found,) = warnings_and_culprits(findings([*progress(30), *lines], tmp_path))
    assert found == (signature.code, [])


def test_symptoms_alone_say_that_they_are_symptoms(tmp_path: Path) -> None:
    lines = [line for n in (0, 1, 3) for line in raised(GLOO, f"[rank{n}]: ")]
    (finding,) = findings(lines, tmp_path)
    assert (finding.code, finding.culprits, finding.victims) == ("failed-gloo", (), (0, 1, 3))
    assert finding.cause.startswith("It is known only that ")
    assert finding.confidence <= 0.5


def test_a_symptom_beside_a_known_death_is_silent(tmp_path: Path) -> None:
    report = (RECORDED / "console/torchrun-kill.txt").read_text(encoding="utf-8").split("\n")
    lines = [*raised(GLOO, "[rank0]: "), *report]
    assert warnings_and_culprits(findings(lines, tmp_path)) == [("failed-killed", [2])]


def test_who_killed_is_reported_by_the_scheduler(tmp_path: Path) -> None:
    report = (RECORDED / "console/torchrun-kill.txt").read_text(encoding="utf-8").split("\n")
    assert warnings_and_culprits(findings([*report, SLURM_OOM], tmp_path)) == [("oom-host", [2])]


def test_what_does_not_explain_a_kill_is_not_blamed_for_it(tmp_path: Path) -> None:
    report = (RECORDED / "console/torchrun-kill.txt").read_text(encoding="utf-8").split("\n")
    assert warnings_and_culprits(findings([SHAPES, *report], tmp_path)) == [("failed-killed", [2])]


def test_an_exception_without_a_rank(tmp_path: Path) -> None:
    (finding,) = findings([*progress(50), *raised(SHAPES)], tmp_path)
    assert finding.code == "failed-shape-mismatch"
    assert [culprit.rank for culprit in finding.culprits] == [None]
    (finding,) = findings([*progress(50), *raised("KeyError: 'labels'")], tmp_path)
    assert (finding.code, finding.title) == (
        "failed-exception",
        "A process of the job raised KeyError at train.py:12: 'labels'",
    )


def test_buffered_progress_after_the_end_excuses_nothing(tmp_path: Path) -> None:
    lines = [*progress(30), *raised(SHAPES), *progress(150, first=30)]
    assert warnings_and_culprits(findings(lines, tmp_path)) == [("failed-shape-mismatch", [None])]


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB; retrying with batch size 8",
        f"caught {SHAPES}, skipping this batch",
        "MemoryError, falling back to memory maps",
    ],
    ids=["retrying", "skipping", "falling back"],
)
def test_what_was_caught_and_tried_again_is_nothing(line: str, tmp_path: Path) -> None:
    assert findings([*progress(30), line, *progress(30, first=30), "done"], tmp_path) == []


def test_the_order_of_several_logs_needs_stamps(tmp_path: Path) -> None:
    def written(stamped: bool) -> list[Finding]:
        for number, (last, second) in enumerate(((SHAPES, 30), (FULL, 20), (GLOO, 40))):
            stamp = f"2026-01-02T03:04:{second}Z " if stamped else ""
            lines = [f"{stamp}{line}" for line in raised(last, line=12 + number)]
            write(tmp_path / f"{stamped}/rank_{number}.log", lines)
        return list(diagnose(load_logs([str(tmp_path / str(stamped))])).findings)

    assert warnings_and_culprits(written(stamped=True)) == [("shm-exhausted", [1])]
    (unknown,) = [one for one in written(stamped=False) if one.severity is Severity.CRITICAL]
    assert unknown.confidence < 0.7
    assert unknown.culprits == ()


def test_different_exceptions_in_logs_without_stamps_blame_nobody(tmp_path: Path) -> None:
    def written(stamped: bool) -> list[Finding]:
        for number, (last, second) in enumerate((("KeyError: 'a'", 30), ("ValueError: b", 20))):
            stamp = f"2026-01-02T03:04:{second}Z " if stamped else ""
            lines = [f"{stamp}{line}" for line in raised(last)]
            write(tmp_path / f"{stamped}/rank_{number}.log", lines)
        return list(diagnose(load_logs([str(tmp_path / str(stamped))])).findings)

    assert warnings_and_culprits(written(stamped=True)) == [("failed-exception", [1])]
    (found,) = written(stamped=False)
    assert found.culprits == ()
    assert (
        found.title
        == "Ranks 0 and 1 failed in different ways, and it is unknown which failed first"
    )


RECORDED_FAILURES: dict[str, tuple[str, list[int | None]]] = {
    "backward-twice": ("failed-reentrant-backward", [0, 1]),
    "checkpoint-damaged": ("failed-checkpoint", [0]),
    "checkpoint-size": ("failed-checkpoint", [0, 1]),
    "collective-mismatch": ("hang-collective-mismatch", []),
    "disk-full": ("failed-disk-full", [None]),
    "lightning-elastic": ("failed-world-size", [None]),
    "lightning-kill1": ("failed-gloo", []),
    "lightning-raise1": ("failed-exception", [1]),
    "lightning-unused": ("failed-unused-parameters", [0, 1]),
    "loader-killed": ("failed-dataloader-worker", [1]),
    "loader-sizes": ("failed-shape-mismatch", [0, 1]),
    "main-guard": ("failed-main-guard", [None]),
    "nan-on-rank-1": ("loss-nan", [1]),
    "no-launcher": ("failed-rendezvous", [None]),
    "port-in-use": ("failed-port-in-use", [None]),
    "rank-behind": ("failed-gloo", []),
    "shape-on-rank-1": ("failed-shape-mismatch", [1]),
    "spawn-lambda": ("failed-spawn-pickling", [None]),
    "tensorflow-leader-lost": ("failed-tf-collective", []),
    "tensorflow-oom": ("failed-tf-resource-exhausted", [None]),
    "tensorflow-python-function": ("failed-exception", [None]),
    "tensorflow-port": ("failed-port-in-use", []),
    "tensorflow-worker-lost": ("failed-tf-worker-missing", []),
    "unused-parameters": ("failed-unused-parameters", [0, 1]),
}
"""Logs of jobs that really failed. None: the text does not say which rank it was; no culprit: it
tells of symptoms, or of ranks that do not agree."""


@pytest.mark.parametrize("name", RECORDED_FAILURES)
def test_jobs_that_really_failed(name: str) -> None:
    case = load_logs([str(RECORDED / f"console/failed/{name}.log")])
    assert warnings_and_culprits(list(diagnose(case).findings)) == [RECORDED_FAILURES[name]]


def test_a_missing_rank_is_named_by_the_one_that_waited(tmp_path: Path) -> None:
    last = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 2000 ms"
    assert warnings_and_culprits(findings(raised(last, "[rank0]: "), tmp_path)) == [
        ("hang-rank-behind", [1])
    ]


@pytest.mark.parametrize(
    ("there", "named"),
    [((0, 2, 3), [1]), ((0, 1, 3), []), ((0, 3), []), ((0, 1, 2, 3), [])],
    ids=["it", "another", "it and another", "nobody"],
)
def test_a_worker_that_never_came_is_the_only_rank_that_left_no_sign(
    there: tuple[int, ...], named: list[int]
) -> None:
    """With a chief worker 1 would be rank 2."""
    absent = {"state": State.MISSING, "pid": None}
    ranks = [rank(n) if n in there else rank(n, **absent) for n in range(4)]
    told = "tf-multiworker: worker 1 (10.0.0.2:2222) did not come within 60 s"
    found, *_ = recorded(failed_job(ranks), [told])
    assert found.code == "failed-tf-worker-missing"
    assert found.title.startswith("Worker 1 never joined")
    assert [culprit.rank for culprit in found.culprits] == named


def test_a_loss_that_stays_nan_is_a_defect_and_once_is_none(tmp_path: Path) -> None:
    steps = [f"step {n} loss {'nan' if n > 30 else 0.5}" for n in range(900)]
    (finding,) = findings(steps, tmp_path)
    assert (finding.code, finding.severity) == ("loss-nan", Severity.WARNING)
    assert finding.evidence[0].where == f"{tmp_path}/x.log:32"
    assert findings([*steps[:34], *progress(300)], tmp_path) == []


def test_a_defect_is_reported_beside_the_cause(tmp_path: Path) -> None:
    remapped = "NVRM: Xid (PCI:0000:52:00): 63, pid='<unknown>', Row Remapper: New row (0x1) mapped"
    found = findings([*progress(20), remapped, *progress(300), *raised(SHAPES)], tmp_path)
    assert [(one.code, one.severity) for one in found] == [
        ("failed-shape-mismatch", Severity.CRITICAL),
        ("gpu-ecc", Severity.WARNING),
    ]


def recorded(case: Case, lines: Sequence[str]) -> list[Finding]:
    return list(diagnose(replace(case, signs=signs_of({"stderr": lines}))).findings)


def test_in_a_recording_the_rank_that_fell_first_is_reported_why() -> None:
    fallen = dead(2, exit_code=1, error=error("RuntimeError", SHAPES.partition(": ")[2]))
    case = failed_job([rank(0), rank(1), fallen, secondary_failure(3)])
    found = recorded(case, raised(SHAPES))
    assert warnings_and_culprits(found) == [("failed-shape-mismatch", [2])]
    assert 3 in found[0].victims


def test_in_a_recording_a_sign_of_another_rank_is_not_the_cause() -> None:
    case = failed_job([rank(0), dead(1, AT + 1, exit_code=1), dead(2, signal=11), terminated(3)])
    found = recorded(case, raised(SHAPES, "[rank1]: "))
    assert warnings_and_culprits(found) == [("failed-signal", [2])]


def test_the_kernels_pid_is_a_rank() -> None:
    case = failed_job([rank(0, pid=100), dead(1, signal=9, pid=101), terminated(2), terminated(3)])
    line = "Out of memory: Killed process 101 (python) total-vm:58217544kB, anon-rss:503316kB"
    assert warnings_and_culprits(recorded(case, [line])) == [("oom-host", [1])]


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.RUNNING, Outcome.KILLED])
def test_a_job_that_did_not_fail_has_no_cause_of_failure(outcome: Outcome) -> None:
    case = failed_job([rank(0), rank(1)])
    case = replace(case, job=replace(case.job, outcome=outcome))
    assert warnings_and_culprits(recorded(case, [*raised(SHAPES), *raised(GLOO)])) == []


def test_a_job_that_was_asked_to_end_may_be_reported_by_whom() -> None:
    case = failed_job([rank(0), rank(1)])
    case = replace(case, job=replace(case.job, outcome=Outcome.KILLED, asked="SIGTERM"))
    line = (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2022-04-14T16:20:46 DUE TO TIME LIMIT ***"
    )
    assert warnings_and_culprits(recorded(case, [line])) == [("failed-time-limit", [])]


def test_another_familys_finding_gets_the_lines_as_evidence() -> None:
    fallen = dead(
        1, exit_code=1, error=error("ValueError", "Attempting to unscale FP16 gradients.")
    )
    case = failed_job([rank(0), fallen])
    lines = raised("ValueError: Attempting to unscale FP16 gradients.", "[rank1]: ")
    found = recorded(case, lines)[0]
    assert found.code == "failed-exception"
    assert any(piece.where == "stderr:5" for piece in found.evidence)
    assert len(found.fixes) == 2


def test_every_code_has_one_rule_and_words_of_its_own() -> None:
    codes = [rule.code for rule in OWN]
    assert len(codes) == len(set(codes))
    known = {signature.code for signature in (*SIGNATURES, WAITING)}
    assert known <= set(codes)
    others = {rule.code for rule in OWN if "The console is searched, too" in rule.how_measured}
    by_text = {rule.code for rule in OWN if "Lines of the console" in rule.how_measured}
    assert known == others | by_text, "a rule whose code signatures know lacks a log_detector"
    assert known - others <= SUMMARIES.keys()
    assert all(any(form.match(code) for form, _ in FAMILIES) for code in SUMMARIES)
    assert family_of("cpu-oversubscribed") == "slow"


def test_first_sentences() -> None:
    assert first_sentence("It ran out. Then it died.") == "It ran out"
    assert first_sentence("Version 2.5 is old") == "Version 2.5 is old"
    assert first_sentence("XID 79: the GPU is lost; reboot") == "XID 79: the GPU is lost"
    assert len(first_sentence("word " * 100)) <= 160


def test_symptoms_weigh_less_than_causes() -> None:
    symptoms = [signature.weight for signature in SIGNATURES if signature.role is Role.SYMPTOM]
    assert symptoms
    assert max(symptoms) <= 0.9


def watchdog(number: int) -> list[str]:
    """What a rank prints under NCCL when a collective was not answered, torch 2.9."""
    said = (
        f"[Rank {number}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=421, "
        "OpType=ALLREDUCE, NumelIn=65536, NumelOut=65536, Timeout(ms)=600000) ran for 600012 "
        "milliseconds before timing out."
    )
    head = f"[rank{number}]:[E1121 10:30:00.123456789 ProcessGroupNCCL.cpp"
    return [
        f"{head}:632] {said}",
        f"{head}:698] [Rank {number}] To avoid data inconsistency, we are taking the entire "
        "process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {number}] Process group watchdog thread "
        f"terminated with exception: {said}",
    ]


def summary(ends: Sequence[tuple[int, int]]) -> list[str]:
    """torchrun's report; the first rank is what it calls the root cause."""
    lines = ["train.py FAILED", "-" * 60, "Failures:"]
    for index, (number, code) in enumerate([*ends[1:], ends[0]]):
        root = index == len(ends) - 1
        lines += ["-" * 60, "Root Cause (first observed failure):", "[0]:"] if root else ["[1]:"]
        lines += [
            "  time      : 2025-11-21_10:30:05",
            "  host      : node01",
            f"  rank      : {number} (local_rank: {number})",
            f"  exitcode  : {code} (pid: {5000 + number})",
            "  error_file: <N/A>",
            "  traceback : To enable traceback see: https://pytorch.org/docs",
        ]
    return [*lines, "=" * 60]


def test_a_watchdogs_abort_is_an_echo_of_the_rank_that_raised(tmp_path: Path) -> None:
    """torchrun calls the first abort the root cause; ten minutes before, rank 3 had raised."""
    survivors = [line for number in (0, 1, 2) for line in watchdog(number)]
    ends = summary([(0, -6), (1, -6), (2, -6), (3, 1)])
    (finding,) = findings([*raised(SHAPES, "[rank3]: "), *survivors, *ends], tmp_path)
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == (
        "failed-shape-mismatch",
        [3],
    )
    assert finding.victims == (0, 1, 2)


def test_watchdogs_alone_name_nobody_but_tell_who_was_silent(tmp_path: Path) -> None:
    survivors = [line for number in (0, 1, 3) for line in watchdog(number)]
    ends = summary([(0, -6), (1, -6), (3, -6), (2, -15)])
    (finding,) = findings([*survivors, *ends], tmp_path)
    assert (finding.code, finding.culprits, finding.victims) == (
        "failed-nccl-timeout",
        (),
        (0, 1, 3),
    )
    assert "Rank 2 printed no such error" in finding.cause


def test_an_abort_with_a_cause_of_its_own_is_no_echo(tmp_path: Path) -> None:
    own = ["[rank1]: terminate called after throwing an instance of 'std::bad_alloc'"]
    ends = summary([(1, -6), (0, -15)])
    assert warnings_and_culprits(findings([*own, *ends], tmp_path)) == [("oom-host", [1])]


def test_a_message_that_goes_on_below_belongs_to_the_exception(tmp_path: Path) -> None:
    last = "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:"
    more = (
        "OOM when allocating tensor with shape[512,64,224,224] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
    )
    found = findings([*raised(last), "", more], tmp_path)
    assert warnings_and_culprits(found) == [("failed-tf-resource-exhausted", [None])]


def test_sruns_tasks_are_ranks_where_it_starts_them(tmp_path: Path) -> None:
    lines = [f"{number % 4}: step {number}" for number in range(40)]
    lines += [SLURM_OOM, "srun: error: node3: task 2: Out Of Memory"]
    assert warnings_and_culprits(findings(lines, tmp_path)) == [("oom-host", [2])]


def test_sruns_last_words_are_no_progress(tmp_path: Path) -> None:
    words = [f"srun: Terminating job step 4711.{step}" for step in range(4)]
    crash = "srun: error: node3: task 0: Segmentation fault"
    assert warnings_and_culprits(findings([*progress(30), crash, *words], tmp_path)) == [
        ("failed-signal", [0])
    ]


def test_a_launchers_line_that_was_cut_names_the_rank(tmp_path: Path) -> None:
    line = (
        "torch.distributed.elastic.multiprocessing.api:failed (exitcode: -7) local_rank: 2 (pid: 7)"
    )
    assert warnings_and_culprits(findings([f"ERROR:{line} (pid: 4711)"], tmp_path)) == [
        ("failed-signal", [2])
    ]


@pytest.mark.parametrize(("name", "code"), [("RuntimeError", "nccl-init"), ("KeyError", "excep")])
def test_native_code_says_why_in_its_next_lines(name: str, code: str, tmp_path: Path) -> None:
    """Not so an exception of Python: what its rank prints afterwards is about something else."""
    detail = "EI0006: [PID: 4711] Getting socket times out. Reason: Remote Rank is absent"
    lines = [*raised(f"{name}: OPS function error", "[rank1]: "), f"[rank1]: {detail}"]
    found = findings([*progress(30), *lines], tmp_path)
    assert code in found[0].code


def _empty(signature: Signature) -> LogMatch:
    return LogMatch(signature.id, None, "x.log", 1, signature.example, None)


def test_a_signal_that_the_launcher_did_not_send_names_its_rank(tmp_path: Path) -> None:
    path = RECORDED / "console/torchrun-one-sigterm.txt"
    report = path.read_text(encoding="utf-8").split("\n")
    (finding,) = findings(report, tmp_path)
    assert warnings_and_culprits([finding]) == [("failed-killed", [1])]
    assert finding.victims == (0, 2)
