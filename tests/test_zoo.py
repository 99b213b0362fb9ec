"""The zoo: what counts as unchanged, the scripts and their commands, and what the page shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.results import Result, load
from tests.matrix.sites import Site
from tests.matrix.verdicts import WORKS, Observation, Outcome, Verdict, fails
from tests.support.jobs import Ended
from tests.zoo import page
from tests.zoo.__main__ import main
from tests.zoo.catalogue import CATALOGUE, SCRIPTS, Script
from tests.zoo.ways import find_hanging_line, judge_unchanged, make_command

SCRIPT = CATALOGUE[0]
PRINTED = f"step 10 loss 1.2500\nsteps {SCRIPT.steps}\n"


def observed(
    out: str = PRINTED, *, code: int = 0, last_step: int = SCRIPT.steps - 1
) -> Observation:
    ranks = [{"rank": rank, "last_step": last_step} for rank in range(2)]
    diagnosis: dict[str, Any] = {"findings": [], "ranks": ranks, "coverage": 0.95}
    return Observation(Ended(code, out, "Error: no\n"), {**diagnosis, "unexamined": []})


def test_a_job_is_unchanged_if_it_prints_and_exits_as_it_does_without() -> None:
    bare = Ended(0, PRINTED, "")
    assert judge_unchanged(SCRIPT, bare, observed()) == WORKS
    wrong = {
        "it printed 'step 10 loss 1.2600' instead of": observed(PRINTED.replace("25", "26")),
        "instead of 'nothing'": observed(PRINTED + "more\n"),
        "it printed 'nothing'": observed(PRINTED.partition("\n")[0]),
        "exit code 3": observed(code=3),
        "last steps [38, 38]": observed(last_step=SCRIPT.steps - 2),
    }
    for words, seen in wrong.items():
        verdict = judge_unchanged(SCRIPT, bare, seen)
        assert verdict.outcome is Outcome.FAILS, words
        assert words in verdict.detail
    fewer = Ended(0, "steps 1\n", "")
    assert judge_unchanged(SCRIPT, fewer, observed("steps 1\n")).outcome is Outcome.FAILS


def test_what_is_not_seen_of_a_job_is_what_it_works_without() -> None:
    script = Script("any", "any", (), None, noisy=True, unseen="its steps", stepless=(0, 1))
    bare = Ended(0, "started 1\n(worker) steps 40\n", "")
    seen = observed("started 2\n(worker) steps 40\n", last_step=0)
    without = Verdict(Outcome.WITHOUT, "its steps")
    assert judge_unchanged(script, bare, seen) == without
    counted = replace(script, stepless=())
    assert judge_unchanged(counted, bare, seen).outcome is Outcome.FAILS
    assert judge_unchanged(counted, bare, observed(bare.out)) == without


def test_every_script_is_in_the_catalogue_and_has_the_common_faults() -> None:
    names = [script.name for script in CATALOGUE]
    assert len(names) == len(set(names))
    scripts = {path for path in SCRIPTS.glob("*.py") if not path.name.startswith("_")}
    assert scripts == {script.path for script in CATALOGUE}
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        for call in (".turn()", ".log(", ".finish()", "parser(steps="):
            assert call in text, (path.name, call)
        assert "mgpu" not in text, path.name
    assert find_hanging_line().startswith("_planted.py:")


def test_a_command_starts_the_script_of_its_environment(tmp_path: Path) -> None:
    site = Site(Path("python-of-zoo"), tmp_path, {})
    for script in CATALOGUE:
        command = make_command(script, site, "hang", "--mark", "m")
        assert command[0] == "python-of-zoo"
        assert str(script.path) in command
        assert command[-4:-2] == ["--rank", str(script.faulty)]


def test_the_page_shows_what_was_run() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.insert_table(text, load(page.RESULTS))


def test_rows_show_failures_reasons_and_what_was_not_run() -> None:
    first, second, *_ = CATALOGUE
    verdicts = {"healthy": WORKS, "crash": fails("nothing was found")}
    results = {
        first.name: Result("2026-01-02", {"torch": "2.13.0"}, verdicts=verdicts, overhead="+1 %"),
        second.name: Result("2026-01-03", reason="no such package"),
    }
    table = page.render(results).splitlines()
    assert table[2].endswith(
        "| torch 2.13.0 | works | not run | not run | fails [1] | +1 % | 2026-01-02 |"
    )
    assert table[3].endswith("| not tried [2] |  |  |  |  |  | 2026-01-03 |")
    assert "1. nothing was found" in table
    assert "2. no such package" in table
    assert f"`{CATALOGUE[2].name}`" in table[-1]
    hand_written = f"# Title\n\n{page.HEADING}\nold\n\n## Notes\n- kept\n"
    shown = page.insert_table(hand_written, results)
    assert shown.startswith(f"# Title\n\n{page.HEADING}\n| script")
    assert shown.endswith("\n\n## Notes\n- kept\n")


def test_an_unknown_script_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["no_such_loop"])
    assert ended.value.code == 2
    assert "no script no_such_loop" in capsys.readouterr().err
