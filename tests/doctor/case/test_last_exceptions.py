"""A log that ends with an exception alone, or with a part of its traceback."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mgpu_doctor.analysis.postmortem.rank_failures import TOLD_BY_LAST_LINES
from mgpu_doctor.case.last_exceptions import EXCERPT, LAST_LINES
from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.case.model import Case, LoggedEnd
from mgpu_doctor.diagnosis import diagnose

STEPS = [f"epoch 1 step {n} loss 0.{n:02}" for n in range(30)]
WARNING = "train.py:7: UserWarning: the scheduler was stepped before the optimizer"


def case_of(lines: Sequence[str], folder: Path) -> Case:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load_logs([str(path)])


def ends_of(lines: Sequence[str], folder: Path) -> tuple[LoggedEnd, ...]:
    return case_of(lines, folder).console.ends


@pytest.mark.parametrize(
    ("last", "name", "message"),
    [
        ("KeyError: 'images'", "KeyError", "'images'"),
        ("AssertionError", "AssertionError", ""),
        ("yaml.scanner.ScannerError: bad indentation", "yaml.scanner.ScannerError", "bad"),
        ("ValueError (see above for traceback): no such op", "ValueError", "no such op"),
        ("**TypeError: forward() missing 1 argument**", "TypeError", "forward() missing"),
        ("E   NameError: name 'amp' is not defined", "NameError", "name 'amp'"),
        ("Error: IndexError: list index out of range", "IndexError", "list index"),
        ("2026-01-02 03:04:05,100 OSError: no route to the bucket", "OSError", "no route"),
        ("ValueError: the loss of step 7 has 3 classes", "ValueError", "step 7"),
        ('    "message": "ValueError: 3 classes expected",', "ValueError", "3 classes"),
    ],
)
@pytest.mark.parametrize("before", [[], [*STEPS, WARNING]])
def test_the_last_line_names_the_exception(
    last: str, name: str, message: str, before: list[str], tmp_path: Path
) -> None:
    case = case_of([*before, last], tmp_path)
    (end,) = case.console.ends
    assert end.error is not None
    assert (end.source, end.rank, end.error.type) == (EXCERPT, None, name)
    assert message in end.error.message
    finding = diagnose(case).findings[0]
    assert (finding.code, finding.confidence) == ("failed-exception", TOLD_BY_LAST_LINES)
    assert any(message in str(piece.value) for piece in finding.evidence)


def test_its_label_names_the_rank(tmp_path: Path) -> None:
    case = case_of([*STEPS, "[rank3]: KeyError: 'images'"], tmp_path)
    assert [end.rank for end in case.console.ends] == [3]
    finding = diagnose(case).findings[0]
    assert [culprit.rank for culprit in finding.culprits] == [3]


def test_a_traceback_whose_head_is_lost(tmp_path: Path) -> None:
    frame = ['  File "/venv/torch/nn/modules/module.py", line 722, in _call', "    return f(x)"]
    (end,) = ends_of([*STEPS, *frame, "ValueError: 3 classes expected"], tmp_path)
    assert end.error is not None
    assert end.error.type == "ValueError"


@pytest.mark.parametrize("lines", [0, 3, LAST_LINES - 1, LAST_LINES])
def test_a_few_lines_may_follow(lines: int, tmp_path: Path) -> None:
    after = [f"frame #{n}: in library {n}" for n in range(lines)]
    assert bool(ends_of(["KeyError: 'images'", *after], tmp_path)) is (lines < LAST_LINES)


@pytest.mark.parametrize(
    "text",
    [
        ["KeyError: 'images'", "epoch 2 done"],
        ["ImportError: no module apex, falling back to torch.optim"],
        ["OSError: shard 7 is short, skipping it"],
        ["subprocess.CalledProcessError: Command '['python', 'train.py']' returned 1."],
        ["AssertionError: can only test a child process"],
        ["Exception ignored in: <function Pool.__del__ at 0x7f00>", "TypeError: 'NoneType'"],
        ["INFO ValueError: is the exception that bad samples raise"],
        ["Errors: 0", "DeprecationWarning: use y"],
        ["the run stopped with a ValueError: see the log"],
    ],
)
def test_what_ends_nothing(text: list[str], tmp_path: Path) -> None:
    assert ends_of([*STEPS, *text], tmp_path) == ()


def test_a_known_failure_counts_more(tmp_path: Path) -> None:
    full = "OSError: [Errno 28] No space left on device"
    case = case_of([*STEPS, full, "RuntimeError: the run failed"], tmp_path)
    assert case.console.ends == ()
    assert [finding.code for finding in diagnose(case).findings] == ["failed-disk-full"]


def test_a_shown_exception_stays_caught(tmp_path: Path) -> None:
    shown = [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in load',
        "ValueError: x",
    ]
    assert ends_of([*STEPS, *shown], tmp_path) == ()
