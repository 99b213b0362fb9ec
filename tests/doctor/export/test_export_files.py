"""A recording's steps as a timeline and as a table, for programs that are not ours."""

from __future__ import annotations

import csv
import gzip
import io
import json
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.model import Event
from mgpu_doctor.cli import app
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.export.files import table, timeline, writing
from tests.support import diagnoses, frames
from tests.support.gpus import gpus, on_gpus
from tests.support.synthetic import Synthetic, synthetic_case

JOB = Synthetic(ranks=3, steps=40)


def traced(case: Any) -> list[dict[str, Any]]:
    found = json.loads("".join(timeline.lines(diagnose(case))))
    assert found["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


def test_a_timeline_holds_every_step_and_its_phases() -> None:
    case = synthetic_case(JOB)
    events = traced(case)
    for place, rank in enumerate(case.ranks):
        own = [one for one in events if one["pid"] == place and one["ph"] == "X"]
        steps = [one for one in own if one["tid"] == timeline.STEPS]
        assert [one["name"] for one in steps] == [f"step {n}" for n in rank.steps["step"]]
        ends = rank.steps["end_ns"] * 1e-9 + rank.clock_offset
        drawn = [(one["ts"] + one["dur"]) * 1e-6 for one in steps]
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
    names = [one["args"]["name"] for one in events if one.get("name") == "process_name"]
    assert names[:3] == [f"rank {rank.rank} on {rank.host}" for rank in case.ranks]
    counted = {one["name"] for one in events if one["ph"] == "C"}
    assert {"CPU %", "GPU 0 busy %", "GPU 2 SM clock MHz"} <= counted
    assert not {one["pid"] for one in events if one["ph"] == "C"} & {0, 1, 2}


def test_gpus_of_several_hosts_have_counters_of_their_own() -> None:
    case = on_gpus(JOB, gpus(1))
    samples = tuple(replace(one, host=host) for host in "ab" for one in case.device_samples[:3])
    events = traced(replace(case, device_samples=samples))
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    busy = [names[one["pid"]] for one in events if one["name"] == "GPU 0 busy %"]
    assert busy == ["host a"] * 3 + ["host b"] * 3


def test_foreign_words_are_only_words() -> None:
    case = synthetic_case(JOB)
    told = Event("note", 5.0, 1, 0.0, 0.0, f'"}}],{diagnoses.HOSTILE}\x00')
    first = replace(case.ranks[0], events=(told,), host="=cmd()")
    events = traced(replace(case, ranks=(first, *case.ranks[1:])))
    assert [one["args"]["text"] for one in events if one["name"] == "note"] == [told.text]
    rows = list(csv.DictReader(io.StringIO("".join(table.lines(replace(case, ranks=(first,)))))))
    assert {row["host"] for row in rows} == {"'=cmd()"}


def test_a_table_holds_every_step_and_leaves_out_what_is_unknown() -> None:
    case = synthetic_case(JOB)
    rows = list(csv.DictReader(io.StringIO("".join(table.lines(case)))))
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
        assert writing.write(path, iter(pieces)) == path.stat().st_size
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes() == "".join(pieces).encode()

    def breaks() -> Any:
        yield "new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        writing.write(plain, breaks())
    assert plain.read_text().endswith("b"), "what was there stays"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.csv", "a.csv.gz"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "say what"),
        (["--serve", "--csv", "x.csv"], 2, "say what"),
        (["--csv", "x.csv"], 2, "name the recording"),
        (["latest", "--csv", "x.json"], 2, "must end in .csv"),
        (["nowhere", "--timeline", "x.json"], 3, "does not exist"),
    ],
)
def test_wrong_usage(words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(app, ["export", *words])
    assert done.exit_code == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
