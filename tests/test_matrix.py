"""The support matrix: what counts as working, what is kept, and what the page shows."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_trainers import catalogue

from tests.matrix import checks, environments, page
from tests.matrix.__main__ import main
from tests.matrix.checks import TENSORFLOW, TORCH, checks_of
from tests.matrix.environments import (
    ENVIRONMENTS,
    Built,
    Environment,
    Framework,
    NotTriedError,
    build,
)
from tests.matrix.page import ORDER, RESULTS, render
from tests.matrix.results import Result, count_tries, load, merge, save
from tests.matrix.sites import TRIES, Check, Site, examine
from tests.matrix.smoke import LEAST_SECONDS, LONGEST_JOB, SMOKE_CHECKS, SMOKE_ENVIRONMENTS
from tests.matrix.verdicts import (
    WORKS,
    Observation,
    Outcome,
    Verdict,
    fails,
    find_refusal,
    judge_crash,
    judge_culprit,
    judge_hang,
    judge_healthy,
    judge_reported,
    judge_trainer,
    last_error,
    without_paths,
)
from tests.support.jobs import JOBS, Ended

STEPS = 40
FINE = Ended(0, "validation loss 0.1 accuracy 99.0%\n", "")


def finding(code: str, *ranks: int, severity: str = "warning", source: str = "steps") -> Any:
    evidence = [{"measure": "rank 1", "source": source, "where": "/jobs/hangs.py:57"}]
    culprits = [{"rank": rank} for rank in ranks]
    parts = {"code": code, "severity": severity, "title": code, "culprits": culprits}
    return {**parts, "evidence": evidence}


def diagnosis(*findings: Any, steps: int = STEPS, **other: Any) -> Any:
    ranks = [{"last_step": steps - 1}, {"last_step": steps - 1}]
    parts = {"findings": findings, "ranks": ranks, "coverage": 0.95, "unexamined": []}
    return {**parts, **other}


def seen(result: Any, ended: Ended = FINE) -> Observation:
    return Observation(ended, result)


def test_a_healthy_job_has_no_alarm_and_all_of_its_steps() -> None:
    mild = finding("cpu-oversubscribed", severity="info")
    assert judge_healthy(seen(diagnosis(mild)), STEPS) == WORKS
    true = seen(diagnosis(finding("sync-excess", 0)))
    assert judge_healthy(true, STEPS).outcome is Outcome.FAILS
    assert judge_healthy(true, STEPS, costs=("sync-excess",)) == WORKS
    wrong = {
        "straggler-input": seen(diagnosis(finding("straggler-input", 1))),
        "last steps [38, 38]": seen(diagnosis(steps=STEPS - 1)),
        "explain 70 %": seen(diagnosis(coverage=0.7)),
        "explain ? of": seen(diagnosis(coverage=None)),
        "exit code 1: ImportError: no": seen(diagnosis(), Ended(1, "", "ImportError: no\n")),
        "exit code 0": seen(None),
    }
    for words, observation in wrong.items():
        verdict = judge_healthy(observation, STEPS)
        assert verdict.outcome is Outcome.FAILS, words
        assert words in verdict.detail


def test_what_the_probe_could_not_see_is_what_it_works_without() -> None:
    gap = {"probe": "probe of torch", "reason": "torch 2.4 has no such hook"}
    verdict = judge_healthy(seen(diagnosis(unexamined=[gap])), STEPS)
    assert verdict == Verdict(Outcome.WITHOUT, "probe of torch: torch 2.4 has no such hook")


def test_a_culprit_is_the_only_one_that_is_accused() -> None:
    right = finding("straggler-input", 1)
    assert judge_culprit(seen(diagnosis(right)), "straggler-input", 1) == WORKS
    for found in (
        [],
        [finding("straggler-input", 0)],
        [finding("straggler-other", 1)],
        [right, finding("straggler-host", 0)],
        [finding("straggler-input", 1, severity="info")],
    ):
        verdict = judge_culprit(seen(diagnosis(*found)), "straggler-input", 1)
        assert verdict.outcome is Outcome.FAILS, found
    doubtful = seen(diagnosis(finding("straggler-input", 1, severity="info")))
    assert judge_culprit(doubtful, "straggler-input", 1) == fails("only mentioned: straggler-input")


def test_what_concerns_all_ranks_is_found_or_not() -> None:
    mild = diagnosis(finding("input-bound", severity="info"))
    assert judge_reported(seen(mild), "input-bound") == WORKS
    assert judge_reported(seen(mild), "recompiling") == Verdict(Outcome.FAILS, "found input-bound")
    assert judge_reported(seen(None), "recompiling").outcome is Outcome.FAILS


def test_a_crash_keeps_the_jobs_exit_code() -> None:
    crashed = diagnosis(finding("failed-exception", 1))
    assert judge_crash(seen(crashed, Ended(1, "", "")), "failed-exception", 1) == WORKS
    lost = judge_crash(seen(crashed), "failed-exception", 1)
    assert lost.outcome is Outcome.FAILS


def test_a_hang_is_named_with_its_line_and_by_the_source_that_was_asked() -> None:
    code, recorder = "hang-collective-mismatch", "flight recorder"
    by_recorder = diagnosis(finding(code, 1, source=recorder))
    assert judge_hang(by_recorder, "", code, place="hangs.py:57", asks=recorder) == WORKS
    assert judge_hang(by_recorder, "", code, place="hangs.py:58").outcome is Outcome.FAILS
    assert judge_hang(None, "no such process", code).outcome is Outcome.FAILS
    gap = {"probe": f"{recorder} of process 10, 11", "reason": "it offers none"}
    by_stacks = diagnosis(finding(code, 1, source="stacks"), unexamined=[gap])
    assert judge_hang(by_stacks, "", code) == WORKS
    without = Verdict(Outcome.WITHOUT, f"{recorder}: it offers none")
    assert judge_hang(by_stacks, "", code, asks=recorder) == without


def test_a_refusal_is_one_sentence_with_the_exit_code_of_wrong_usage() -> None:
    sentence = "mgpu-doctor: torch-fsdp needs torch 2.6 or newer."
    refused = judge_trainer(seen(None, Ended(2, "", sentence + "\n")), STEPS)
    assert refused == Verdict(Outcome.REFUSES, sentence)
    for ended in (
        Ended(1, "", sentence),
        Ended(2, "", f"Traceback:\n{sentence}"),
        Ended(2, "", ""),
    ):
        assert judge_trainer(seen(None, ended), STEPS).outcome is Outcome.FAILS
    assert find_refusal(Ended(3, "", sentence), 3, "torch 2.6") == refused
    assert find_refusal(Ended(3, "", sentence), 3, "tf.profiler") is None
    assert judge_trainer(seen(diagnosis()), STEPS) == WORKS
    assert judge_trainer(seen(diagnosis(), Ended(0, "", "")), STEPS).outcome is Outcome.FAILS
    fewer = seen(diagnosis(steps=9))
    assert judge_trainer(fewer, STEPS).outcome is Outcome.FAILS
    assert judge_trainer(fewer, STEPS, all_train=False) == WORKS


def test_the_error_that_matters_is_not_the_launchers() -> None:
    text = """\
[rank1]: ImportError: cannot import name 'get_schedule_class'
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
==========
"""
    assert last_error(text) == "[rank1]: ImportError: cannot import name 'get_schedule_class'"
    assert last_error("\n") == "it printed nothing"
    assert without_paths("/tmp/a/b and /tmp/a", ["/tmp/a", "/tmp/a/b"]) == "… and …"


def test_results_are_kept_merged_and_shown(tmp_path: Path) -> None:
    first, second = (each.name for each in ENVIRONMENTS[:2])
    refusal = Verdict(Outcome.REFUSES, "needs a | newer <torch>")
    result = Result("2026-01-02", {"python": "3.10.1"}, None, 9.5, 3_000_000_000, {"crash": WORKS})
    newer = Result("2026-01-03", {"python": "3.10.1"}, None, 8.0, 1, {"`plan`": refusal})
    upgraded = Result("2026-01-04", {"python": "3.10.2"}, None, 8.0, 1, {"`trace`": WORKS})
    assert merge(result, newer).verdicts == {"crash": WORKS, "`plan`": refusal}
    assert merge(result, upgraded) == upgraded
    kept = Result("2026-01-03", {"python": "3.10.1"}, None, None, 2, {"`plan`": refusal})
    assert merge(result, kept).install_seconds == 9.5
    assert merge(result, kept).install_bytes == 3_000_000_000
    results = {
        second: merge(result, newer),
        first: Result("2026-01-05", reason="no Python 3.10 on the machine"),
    }
    save(results, tmp_path / "results.json", ORDER)
    assert load(tmp_path / "results.json") == results
    assert load(tmp_path / "none.json") == {}
    text = render(results)
    rows = {cells[0]: cells[1:] for cells in cells_of(text)}
    assert rows[""] == ["2.4", "2.6"]
    assert rows["crash"] == ["not run", "works"]
    assert rows["`plan`"] == ["not run", "refuses [2]"]
    assert rows["Python"] == ["not tried [1]", "3.10.1"]
    assert "2. needs a \\| newer &lt;torch>" in text
    assert "Not run so far: 2.8, 2.10" in text


def test_tries_are_counted_kept_and_shown(tmp_path: Path) -> None:
    site, given = Site(Path("python"), tmp_path, {}), [fails("late"), WORKS]
    passed = examine(Check("crash", lambda _: given.pop(0)), site)
    assert passed == Verdict(Outcome.WORKS, "", ("late",))
    failed = examine(Check("crash", lambda _: fails(f"in {tmp_path}")), site)
    assert failed == Verdict(Outcome.FAILS, "in …", ("in …",) * (TRIES - 1))
    assert examine(Check("crash", lambda _: WORKS), site).earlier == ()

    name, versions = ENVIRONMENTS[0].name, {"python": "3.10.1"}
    before = Result("2026-01-02", versions, verdicts={"crash": failed, "`plan`": WORKS})
    after = Result("2026-01-03", versions, verdicts={"crash": passed, "`plan`": passed})
    counted = count_tries(before, after)
    assert counted.verdicts["crash"] == Verdict(Outcome.WORKS, "", ("in …", "in …", "late"))
    assert counted.verdicts["`plan`"] == passed
    assert count_tries(Result("2026-01-02", {"python": "3.10.2"}), after) == after
    save({name: counted}, tmp_path / "results.json", ORDER)
    assert load(tmp_path / "results.json") == {name: counted}
    text = render({name: counted})
    rows = {cells[0]: cells[1:] for cells in cells_of(text)}
    assert rows["crash"] == ["works (try 4) [1]"]
    assert rows["`plan`"] == ["works (try 2) [2]"]
    assert "1. earlier: in …; late\n2. earlier: late" in text


def test_what_cannot_be_made_today_keeps_what_was_measured() -> None:
    measured = Result("2026-01-02", {"python": "3.10.1"}, verdicts={"crash": WORKS})
    missing = Result("2026-01-03", reason="no network")
    assert merge(measured, missing) == measured
    assert merge(None, missing) == missing


def cells_of(text: str) -> list[list[str]]:
    """The cells of the first table."""
    table = text.split("\n## ")[1]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_the_page_shows_what_was_run() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == render(load(RESULTS))


def test_each_trainer_is_checked_and_names_are_unique() -> None:
    names = [check.name for check in (*TORCH, *TENSORFLOW)]
    for trainer in catalogue.TRAINERS:
        assert names.count(f"`train {trainer.name}`") == (trainer.name != "tf-tpu")
    for framework in Framework:
        own = [check.name for check in checks_of(framework)]
        assert len(own) == len(set(own))
    assert len({each.name for each in ENVIRONMENTS}) == len(ENVIRONMENTS)


def test_the_scripts_that_checks_start_exist() -> None:
    source = Path(checks.__file__).read_text(encoding="utf-8")
    scripts = set(re.findall(r'"(\w+\.py)"', source))
    assert len(scripts) > 5
    assert {script for script in scripts if not (JOBS / script).exists()} == set()


def test_an_environment_without_its_python_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    fails = tmp_path / f"python{ENVIRONMENTS[0].python}"
    fails.write_text("#!/bin/sh\nexit 127\n")
    fails.chmod(0o755)
    with pytest.raises(NotTriedError, match=r"no Python 3\.10"):
        build(ENVIRONMENTS[0], tmp_path / "environment")


def test_an_environment_that_would_fill_the_disk_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "find_interpreter", lambda _: Path("python"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=11.9e9))
    with pytest.raises(NotTriedError, match=r"11\.9 GB of disk are free, 12 needed"):
        build(ENVIRONMENTS[0], tmp_path / "environment")


PIP = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; fi
mkdir "$TMPDIR/pip-unpack"; echo "$TMPDIR" > "${0%/bin/*}/unpacked"; exec sleep 60
"""
"""A Python whose pip unpacks, and does not end."""


def test_a_pip_that_is_killed_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter, temporary = tmp_path / "python", tmp_path / "tmp"
    temporary.mkdir()
    interpreter.write_text(PIP)
    interpreter.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(environments, "find_interpreter", lambda _: interpreter)
    monkeypatch.setattr(environments, "LEAST_SPACE", dict.fromkeys(Framework, 0.0))
    with pytest.raises(NotTriedError, match="longer than 2 s"):
        build(ENVIRONMENTS[0], tmp_path / "made", longest=2.0)
    unpacked = Path((tmp_path / "made" / "unpacked").read_text().strip())
    assert unpacked.parent == temporary
    assert list(temporary.iterdir()) == []


def test_a_smoke_test_without_its_environments_says_so_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    kept = RESULTS.read_text(encoding="utf-8")
    assert main(["--smoke", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in SMOKE_ENVIRONMENTS:
        assert f"WARNING: {name} WAS NOT RUN: no Python 3." in printed
    assert "smoke test: not run: 2" in printed
    assert RESULTS.read_text(encoding="utf-8") == kept


def test_a_smoke_test_fails_where_a_check_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = Built(Path("python"), {}, None, 0)
    monkeypatch.setattr("tests.matrix.smoke.build", lambda *_: built)
    verdicts = iter([WORKS, fails("late"), WORKS, WORKS])
    monkeypatch.setattr("tests.matrix.smoke.examine", lambda *_: next(verdicts))
    assert main(["--smoke", "--folder", str(tmp_path)]) == 1
    assert "smoke test: works: 3, fails: 1" in capsys.readouterr().out
    assert {check.name for check in TORCH}.issuperset(SMOKE_CHECKS)


def test_a_smoke_test_without_room_for_both_makes_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=23e9))
    made = list[tuple[str, ...]]()

    def build_beside(environment: Environment, folder: Path, _longest: float) -> Built:
        made.append(tuple(each.name for each in folder.parents[1].iterdir()))
        assert environment.requirements[0].startswith("torch==")
        assert len(environment.requirements) == 1, "without Ray"
        return Built(Path("python"), {}, None, 0)

    monkeypatch.setattr("tests.matrix.smoke.build", build_beside)
    monkeypatch.setattr("tests.matrix.smoke.examine", lambda *_: WORKS)
    assert main(["--smoke", "--folder", str(tmp_path)]) == 0
    assert made == [(name,) for name in SMOKE_ENVIRONMENTS]


def test_a_smoke_test_without_the_time_says_so_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = list[float]()
    monkeypatch.setattr("tests.matrix.smoke.build", lambda *given: _late(given[-1], longest))
    options = ["--smoke", "--folder", str(tmp_path), "--within"]
    assert main([*options, str(LEAST_SECONDS - 1)]) == 0
    assert "WARNING: THE SMOKE TEST WAS NOT RUN: 239 s are left" in capsys.readouterr().out
    assert longest == []
    clock = iter([0.0, 1.0, *(LEAST_SECONDS - LONGEST_JOB for _ in range(99))])
    monkeypatch.setattr("tests.matrix.smoke.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert main([*options, str(LEAST_SECONDS)]) == 0
    assert longest == [LEAST_SECONDS - 1] * 2
    assert "smoke test: not run: 4" in capsys.readouterr().out


def _late(longest: float, seen: list[float]) -> Built:
    seen.append(longest)
    return Built(Path("python"), {}, None, 0)


def test_an_unknown_environment_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["torch-1.0"])
    assert ended.value.code == 2
    assert "no environment torch-1.0" in capsys.readouterr().err
