"""TensorFlow's profiles: a real one, simulated ones of GPUs, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.traces import xplane_trace
from mgpu_probes.outside.traces.trace_columns import Kind, NotATraceError, RawTrace
from mgpu_probes.outside.traces.xplane_trace import Broken, fields, read_xplane, varint

from mgpu_doctor.cli import app
from tests.support import xplane as written

RECORDED = Path(__file__).parents[1] / "recorded/xplane"
(FILE,) = RECORDED.rglob("*.xplane.pb")
"""Of tensorflow-cpu 2.21; a generator made each batch in 20 ms."""
NAMES = {1: "train", 2: "sgd/Mul_3:Mul", 3: "EagerExecute", 4: "cuLaunchKernel"}
KERNELS = {1: "gemm", 2: "MemcpyH2D", 3: "ncclDevKernel_AllReduce", 4: "Memset"}


def read(tmp_path: Path, content: bytes) -> RawTrace:
    path = tmp_path / "node.xplane.pb"
    path.write_bytes(content)
    return read_xplane(path)


def rows(found: RawTrace) -> list[tuple[str, Kind, int, int]]:
    return [
        (found.names[event["name"]], Kind(event["kind"]), int(event["start"]), int(event["length"]))
        for event in found.events
    ]


def host() -> bytes:
    events = [
        written.event(1, 0, 9_000_000, {7: 12}),
        written.event(2, 1_000_000, 2_000_000),
        written.event(3, 1_000_000, 2_000_000),
    ]
    return written.plane("/host:CPU", [written.line("python", 100, events)], NAMES, {7: "step_num"})


def device(number: int) -> bytes:
    events = [written.event(key, key * 1_000_000, 500_000, {9: 40 + key}) for key in KERNELS]
    lines = [
        written.line("Stream #13(Compute)", 5, events),
        written.line("XLA Modules", 5, events),
    ]
    return written.plane(f"/device:GPU:{number}", lines, KERNELS, {9: "correlation_id"})


def test_what_tensorflow_wrote_is_reported_by_the_verb() -> None:
    result = CliRunner().invoke(app, ["diagnose", str(RECORDED)])
    assert result.exit_code == 1
    assert "The training waits for data" in result.output
    assert "tensorflow" in result.output
    assert "tf.data.AUTOTUNE" in result.output


def test_steps_fetches_and_operators_of_a_real_profile() -> None:
    found = read_xplane(FILE)
    told = rows(found)
    steps = [row for row in told if row[0].startswith("ProfilerStep#")]
    assert [name for name, *_ in steps] == [f"ProfilerStep#{step}" for step in range(8)]
    fetches = [row for row in told if row[0] == xplane_trace.FETCH]
    assert len(fetches) == 8
    for (_, _, start, length), (_, _, begun, lasted) in zip(steps, fetches, strict=True):
        assert start <= begun < begun + lasted <= start + length
    assert any(kind is Kind.OPERATOR and name.endswith("MatMul") for name, kind, *_ in told)
    assert (found.cut, found.damaged) == (None, 0)


def test_a_host_in_nanoseconds(tmp_path: Path) -> None:
    found = read(tmp_path, written.space(host()))
    assert rows(found) == [
        ("ProfilerStep#12", Kind.NOTE, 100, 9000),
        ("sgd/Mul_3:Mul", Kind.OPERATOR, 1100, 2000),
    ]
    assert (found.host, found.framework) == ("node", "tensorflow")


def test_a_gpu_s_streams_and_none_of_the_lines_derived_from_them(tmp_path: Path) -> None:
    found = read(tmp_path, written.space(host(), device(0), device(1)))
    told = [row for row in rows(found) if row[1] not in (Kind.NOTE, Kind.OPERATOR)]
    assert told == [
        ("gemm", Kind.KERNEL, 1005, 500),
        ("MemcpyH2D", Kind.COPY, 2005, 500),
        ("ncclDevKernel_AllReduce", Kind.KERNEL, 3005, 500),
        ("Memset", Kind.SET, 4005, 500),
    ]
    assert sorted(found.events["correlation"])[-4:] == [41, 42, 43, 44]
    assert found.cut is not None
    assert "/device:GPU:0" in found.cut


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_broken_tail_is_reported(tmp_path: Path, share: float) -> None:
    content = FILE.read_bytes()
    found = read(tmp_path, content[: int(len(content) * share)])
    assert found.cut is not None


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    found = read(tmp_path_factory.mktemp("any"), raw)
    assert not len(found.events)


@given(st.data())
def test_a_changed_byte_breaks_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(written.space(host(), device(0)))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    found = read(tmp_path_factory.mktemp("changed"), bytes(content))
    assert (found.events["start"] >= 0).all()
    assert (found.events["length"] >= 0).all()


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xplane_trace, "MOST_EVENTS", 10)
    found = read(tmp_path, FILE.read_bytes())
    assert len(found.events) <= 10
    assert found.cut == "only its first 10 events were read"
    monkeypatch.setattr(xplane_trace, "MOST_BYTES", 1 << 10)
    with pytest.raises(NotATraceError, match="profile fewer steps"):
        read(tmp_path, FILE.read_bytes())


@given(st.integers(0, (1 << 64) - 1))
def test_integers_come_back(value: int) -> None:
    encoded = written.varint(value)
    assert varint(encoded, 0, len(encoded)) == (value, len(encoded))


@pytest.mark.parametrize("broken", [b"\x80", b"\xff" * 11, b"\x0a\x05abc", b"\x0b", b"\x09\0"])
def test_what_does_not_follow_the_encoding_is_broken(broken: bytes) -> None:
    with pytest.raises(Broken):
        list(fields(broken, 0, len(broken)))
