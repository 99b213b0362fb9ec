"""Untrusted stack output is read without harm."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from mgpu_probes.outside.stacks import (
    faulthandler_stacks,
    kernel_waits,
    ptrace_permission,
    pyspy_stacks,
    stack_threads,
)
from mgpu_probes.outside.stacks.kernel_waits import Holders
from mgpu_probes.outside.stacks.stack_threads import Json

from mgpu_doctor.case.job_snapshots import read_job_snapshot
from tests.support.seeds import at_most

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_KEYS = st.sampled_from(
    ("pid", "thread_name", "os_thread_id", "active", "owns_gil", "frames", "name", "line")
)
_ANYTHING = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_KEYS, inner, max_size=9)
)
_LINES = st.lists(
    st.sampled_from(
        (
            "Thread 0x01 (most recent call first):",
            "Current thread 0x01 [a] (most recent call first):",
            '  File "a.py", line 3 in f',
            '  File "", line 999999999 in ',
            "  <no Python frame>",
            "...",
            "",
        )
    )
    | st.text(max_size=40),
    max_size=30,
)


def survives(found: list[Json]) -> None:
    """It can be written, and read by the case."""
    stack = stack_threads.make_stack(7, 1.0, "py-spy", found)
    snapshot = read_job_snapshot(json.loads(json.dumps({"at": 1.0, "stacks": [stack]})))
    assert snapshot is not None
    assert sum(thread.main for thread in snapshot.stacks[0].threads) <= 1


@given(_ANYTHING)
def test_any_json_instead_of_stacks(found: object) -> None:
    survives(pyspy_stacks.parse_dump(json.dumps(found).encode(), 7))


@given(st.binary(max_size=200))
def test_any_bytes_instead_of_stacks(found: bytes) -> None:
    survives(pyspy_stacks.parse_dump(found, 7))


def test_json_that_is_nested_too_deeply() -> None:
    assert pyspy_stacks.parse_dump(b"[" * 100_000, 7) == []


@given(_LINES)
def test_any_text_instead_of_faulthandlers(lines: list[str]) -> None:
    survives(faulthandler_stacks.parse_faulthandler("\n".join(lines)))


def test_a_process_cannot_lie_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    text = "Name:\tx\x0bSigCgt:fff\x85Uid:\t7\nUid:\t0\t0\t0\t0\nSigCgt:\t0000000000000000\n"
    (tmp_path / "7" / "status").write_text(text, "utf-8")
    assert not faulthandler_stacks.is_caught(7, 10, tmp_path)
    assert ptrace_permission.explain_denial(7, tmp_path, 1000)[0].startswith("it belongs to root")


@settings(max_examples=at_most(50))
@given(
    st.dictionaries(
        st.sampled_from(
            ("stat", "status", "schedstat", "wchan", "syscall", "task/7/status", "task/7/stat")
        ),
        st.text(max_size=60)
        | st.just("7 (a) S " + " ".join(str(n) for n in range(4, 53)))
        | st.just("0 0x0 0x1 0x1 0x0 0x0 0x0 0x7ff 0x7f0")
        | st.just("NSpid: 7 x\nUid: a\nCapEff: zz\nCapPrm:"),
    )
)
def test_any_text_in_proc(files: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        proc = Path(folder)
        for name, text in files.items():
            path = proc / "7" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8", "replace")
        kernel_waits.read_kernel_state(7, holders=Holders(proc))
        assert all(ptrace_permission.explain_denial(7, proc, 1000))
        stack_threads.settle_threads([stack_threads.make_thread([], main=True, id=3)], 7, proc)
