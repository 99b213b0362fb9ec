"""A recording's steps as a timeline and as a table, for other programs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import stat
from dataclasses import replace
from itertools import pairwise, product
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mgpu_probes.inprocess.layout import PHASES
from msgspec import structs

from mgpu_doctor.case.model import Case, Event
from mgpu_doctor.cli import app
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.export import step_table, timeline
from mgpu_doctor.report import text
from tests.support import diagnoses, frames
from tests.support.gpus import gpus, on_gpus
from tests.support.synthetic import Synthetic, synthetic_case

JOB = Synthetic(ranks=3, steps=40)


def traced(case: Any) -> list[dict[str, Any]]:
    document = json.loads("".join(timeline.lines(diagnose(case))))
    assert document["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def test_a_timeline_holds_every_step_and_its_phases() -> None:
    case = synthetic_case(JOB)
    events = traced(case)
    for place, rank in enumerate(case.ranks):
        own = [event for event in events if event["pid"] == place and event["ph"] == "X"]
        steps = [one for one in own if one["tid"] == timeline.STEPS]
        assert [records["name"] for records in steps] == [f"step {n}" for n in rank.steps["step"]]
        ends = rank.steps["end_ns"] * 1e-9 + rank.clock_offset
        drawn = [(records["ts"] + records["dur"]) * 1e-6 for records in steps]
        assert drawn == pytest.approx(ends.tolist(), abs=2e-6)
        phases = [one for one in own if one["tid"] == timeline.SHARES]
        whole = {name: sum(o["dur"] for o in phases if o["name"] == name) for name in PHASES}
        recorded = np.nansum(rank.steps["phases"], axis=0, dtype=np.float64) * 1e6
        assert [whole[name] for name in PHASES] == pytest.approx(recorded.tolist(), abs=1)
        for one, after in pairwise(phases):
            assert one["ts"] + one["dur"] <= after["ts"] + 0.01, "they do not overlap"


def test_ranks_hosts_and_gpus_have_names_and_counters() -> None:
    case = on_gpus(JOB, gpus(3))
    events = traced(replace(case, host_samples=(frames.HOST,)))
    names = [event["args"]["name"] for event in events if event.get("name") == "process_name"]
    assert names[:3] == [f"rank {rank.rank} on {rank.host}" for rank in case.ranks]
    counted = {event["name"] for event in events if event["ph"] == "C"}
    assert {"CPU %", "GPU 0 busy %", "GPU 2 SM clock MHz"} <= counted
    assert not {event["pid"] for event in events if event["ph"] == "C"} & {0, 1, 2}


def test_gpus_of_several_hosts_have_counters_of_their_own() -> None:
    case = on_gpus(JOB, gpus(1))
    samples = tuple(
        structs.replace(sample, host=host) for host in "ab" for sample in case.device_samples[:3]
    )
    events = traced(replace(case, device_samples=samples))
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    busy = [names[event["pid"]] for event in events if event["name"] == "GPU 0 busy %"]
    assert busy == ["host a"] * 3 + ["host b"] * 3


def hosted(host: str) -> Case:
    """A case of one rank on a host of this name."""
    case = synthetic_case(Synthetic(ranks=1, steps=2))
    return replace(case, ranks=(replace(case.ranks[0], host=host),))


def table_of(case: Case) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(step_table.lines(case)))))


def test_foreign_words_are_only_words_in_a_timeline() -> None:
    case = synthetic_case(JOB)
    wild = f'"}}}}],{diagnoses.HOSTILE}\x00\x9b2J'
    note = Event(f"note{wild}", 5.0, 1, 0.0, 0.0, f"first\nsecond{wild}")
    first = replace(case.ranks[0], events=(note,), host=f"node{wild}")
    bad = replace(case, ranks=(first, *case.ranks[1:]), job=replace(case.job, id=f"job{wild}"))
    (event,) = [one for one in traced(bad) if one.get("name", "").startswith("note")]
    assert event["args"]["text"] == text.clean(note.text)
    assert event["args"]["text"].startswith('first\nsecond"}}],[bold red]x')
    whole = json.loads("".join(timeline.lines(diagnose(bad))))
    assert [words for words in strings(whole) if not words.replace("\n", "").isprintable()] == []
    assert whole["otherData"]["job"].startswith('job"}}],')


def strings(value: Any) -> list[str]:
    """All that are somewhere in a JSON value."""
    if isinstance(value, dict):
        return [words for pair in value.items() for part in pair for words in strings(part)]
    if isinstance(value, list):
        return [words for part in value for words in strings(part)]
    return [value] if isinstance(value, str) else []


def test_numbers_that_are_none_are_left_out_of_a_timeline() -> None:
    case = synthetic_case(JOB)
    happened = [Event("note", at, 1, seconds, 0.0, "") for at, seconds in ((nan, 0.0), (5.0, inf))]
    steps = case.ranks[0].steps.copy()
    steps["phases"][0, 0] = inf
    first = replace(case.ranks[0], events=tuple(happened), steps=steps)
    events = traced(replace(case, ranks=(first,)))
    assert not [event for event in events if event.get("name") == "note"]


@pytest.mark.parametrize("start", [*"=+-@", *"＝＋－＠", "−", "\t=", "\r+", "\n@"])
def test_no_cell_of_text_begins_a_formula(start: str) -> None:
    spaces = ("", " ", "\t", "\r", "\r\n", "\u00a0", "\u200b", "\ufeff", "\x00")
    for space, quote in product(spaces, ("", '"', "'", "“", '" ')):
        for row in table_of(hosted(f"{space}{quote}{start}cmd|' /C calc'!A0")):
            assert row["host"].startswith("'")
            assert "cmd" in row["host"]
            assert row["host"].isprintable()


@pytest.mark.parametrize("separator", [";", ",", "\t", "|", '";"', "\n"])
def test_no_cell_begins_a_formula_where_others_split_the_line(separator: str) -> None:
    for line in list(step_table.lines(hosted(f"node{separator}=cmd()")))[1:]:
        for other in ";\t|,":
            assert not [part for part in line.split(other) if part.strip('" ').startswith("=")]
            assert "=cmd()" in line


def test_usual_names_and_numbers_of_the_table_stay_as_they_are() -> None:
    for name in ("node-7", "10.0.0.7", "a+b", "gpu@rack-3", "ノード"):
        assert {row["host"] for row in table_of(hosted(name))} == {name}
    case = hosted("node")
    steps = case.ranks[0].steps.copy()
    steps["loss"][:] = [-1.5, -inf]
    first = replace(case.ranks[0], steps=steps, clock_offset=-1e9, rank=-3)
    rows = table_of(replace(case, ranks=(first,)))
    assert [float(row["loss"]) for row in rows] == [-1.5, -inf]
    assert all(float(row["ended"]) < 0 for row in rows)
    assert [row["rank"] for row in rows] == ["-3", "-3"]
    assert next(step_table.lines(case)) == ",".join(step_table.COLUMNS) + "\n"


def test_a_table_holds_every_step_and_leaves_out_what_is_unknown() -> None:
    case = synthetic_case(JOB)
    rows = list(csv.DictReader(io.StringIO("".join(step_table.lines(case)))))
    assert len(rows) == 3 * len(case.ranks[0].steps)
    first, records = rows[0], case.ranks[0].steps
    assert float(first["step_seconds"]) == pytest.approx(records["wall_ns"][0] * 1e-9)
    known = [not np.isnan(seconds) for seconds in records["phases"][0]]
    assert [bool(first[f"{name}_seconds"]) for name in PHASES] == known
    assert not all(known), "communication is never recorded by a rank"


def test_files_are_private_whole_and_packed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.csv", tmp_path / "a.csv.gz"
    pieces = ["é" * 700_000, "\n", "b" * 700_000]
    for path in (plain, packed):
        assert step_table.write(path, iter(pieces)) == path.stat().st_size
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes() == "".join(pieces).encode()

    def breaks() -> Any:
        yield "new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        step_table.write(plain, breaks())
    assert plain.read_text().endswith("b"), "what was there stays"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.csv.gz"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "choose a format"),
        (["--serve", "--csv", "x.csv"], 2, "choose a format"),
        (["--csv", "x.csv"], 2, "name the recording"),
        (["latest", "--csv", "x.json"], 2, "must end in .csv"),
        (["nowhere", "--timeline", "x.json"], 3, "does not exist"),
    ],
)
def test_wrong_usage(words: list[str], code: int, message: str) -> None:
    done = CliRunner().invoke(app, ["export", *words])
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
