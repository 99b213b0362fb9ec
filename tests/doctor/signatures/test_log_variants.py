"""The verdict on a log stays the same however the log was passed on; healthy logs give no
finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mgpu_doctor.case.log_case import load_logs
from tests.support.log_texts import (
    CODES,
    COMPOSED,
    ORIGINAL,
    FaultyText,
    alarms,
    examples,
    first_code,
    healthy_texts,
    recorded_failures,
)
from tests.support.log_variants import CHANGES, CUTS, label, wrap

SAMPLED = 12
"""Every so many signatures is tried here; `benchmarks.log_verdicts` tries all."""
ALWAYS = {
    *(ORIGINAL, "wrapped at 80", "filled and quoted", "labelled by rank", "stamped and wrapped"),
    *CUTS,
}
"""What the quick run tries: each kind of change."""


def marks(variant: str) -> Sequence[pytest.MarkDecorator]:
    return () if variant in ALWAYS else (pytest.mark.slow,)


def share_of_right_verdicts(texts: Sequence[FaultyText], variant: str, folder: Path) -> float:
    """The share of texts whose first verdict is right."""
    verdicts = [first_code(one.variant(variant), folder) == one.code for one in texts]
    return sum(verdicts) / len(verdicts)


@pytest.mark.parametrize(
    ("variant", "least"),
    [
        pytest.param(name, least, marks=marks(name))
        for name, least in ((ORIGINAL, 1.0), *((name, 0.9) for name in CHANGES), ("head cut", 0.95))
    ],
)
def test_failed_jobs_are_recognised(variant: str, least: float, tmp_path: Path) -> None:
    assert share_of_right_verdicts(recorded_failures(), variant, tmp_path) >= least


@pytest.mark.parametrize(
    ("variant", "least"),
    [
        pytest.param(name, least, marks=marks(name))
        for name, least in ((ORIGINAL, 1.0), *((name, 0.95) for name in CHANGES))
    ],
)
def test_messages_alone_are_recognised(variant: str, least: float, tmp_path: Path) -> None:
    assert share_of_right_verdicts(examples()[::SAMPLED], variant, tmp_path) >= least


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=marks(name)) for name in (ORIGINAL, *CHANGES, *CUTS)],
)
def test_healthy_logs_raise_no_alarm(variant: str, tmp_path: Path) -> None:
    raised = {
        one.name: codes
        for one in healthy_texts()
        if (codes := alarms(one.variant(variant), tmp_path))
    }
    assert raised == {}


def test_all_recorded_failures_have_a_right_code() -> None:
    assert len(CODES.keys() - COMPOSED) >= 30
    assert all(text.code == CODES[text.name] for text in recorded_failures())


TIMED_OUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, "
    "NumelIn=4096, NumelOut=4096, Timeout(ms)=90000) ran for 90021 milliseconds before timing out."
)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_values_are_read_from_joined_lines(width: int, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\nstep 2\n" + label(wrap(TIMED_OUT, width), "    ") + "\n")
    (sign,) = load_logs([str(log)]).signs
    assert sign.form == "joined"
    assert sign.number == 3
    assert sign.values == {
        "sequence": "77",
        "operation": "ALLREDUCE",
        "milliseconds": "90000",
        "ran": "90021",
    }


def test_neighbouring_lines_that_were_never_one_are_not_joined(tmp_path: Path) -> None:
    """Short lines ended by themselves, and lines of different ranks are not one message."""
    log = tmp_path / "train.log"
    for text in (
        "CUDA out of\nmemory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 3.00 GiB\n",
        "[rank0]: all of what this rank has to say ends with the words CUDA error: device-side\n"
        "[rank1]: assert triggered\n",
    ):
        log.write_text(text)
        assert load_logs([str(log)]).signs == ()


ABORT = "Fatal Python error: Aborted"
MISMATCH = (
    "what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. "
    "64 vs 8. Received data size doesn't match expected size. Is there a distributed collective "
    "mismatch in your code?"
)
WAITED = (
    "[rank{}]: RuntimeError: [/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
    "7000ms for recv operation to complete"
)
WATCHDOG = TIMED_OUT.replace("[Rank 3] ", "")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([f"[rank1]: {WATCHDOG}", ABORT], "failed-nccl-timeout"),
        ([ABORT, *["waits"] * 70, f"[rank1]: {WATCHDOG}"], "failed-signal"),
        ([WAITED.format(0), WAITED.format(1), f"[rank0]: {MISMATCH}"], "failed-gloo"),
        ([WAITED.format(0), f"[rank1]: {MISMATCH}"], "hang-collective-mismatch"),
        ([f"[rank1]: {MISMATCH}", WAITED.format(0)], "hang-collective-mismatch"),
    ],
    ids=["aborted by it", "aborted before", "all timed out", "one timed out", "mismatch first"],
)
def test_what_follows_a_timeout_is_no_cause(lines: list[str], code: str, tmp_path: Path) -> None:
    assert first_code("\n".join(["[rank0]: up", "[rank1]: up", *lines]), tmp_path) == code


@pytest.mark.parametrize(
    "variant",
    [
        str,
        *(
            pytest.param(CHANGES[name], marks=pytest.mark.slow, id=name)
            for name in ("wrapped at 80", "quoted")
        ),
    ],
)
def test_no_line_of_a_healthy_log_raises_an_alarm_alone(
    variant: Callable[[str], str], tmp_path: Path
) -> None:
    """Without the lines around it that show that the job is well."""
    lines = {line for text in healthy_texts() for line in text.text.splitlines() if line.strip()}
    changed = {variant(line) for line in lines}
    new = changed if variant is str else changed - lines
    raised = {text: codes for text in sorted(new) if (codes := alarms(text, tmp_path))}
    assert raised == {}


def test_a_message_that_says_it_was_caught_does_so_in_the_next_line(tmp_path: Path) -> None:
    text = (
        "WARNING data: could not read sample 12 (OSError: [Errno 5]\n"
        "Input/output error: '/data/images/12.jpg'),\n"
        "skipping it\n"
    )
    assert alarms(text, tmp_path) == []
