"""The pickle reader that cannot run code: plain values are read, everything else is rejected."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.torch_pickles import Later, NotAFlightError, unpickle
from mgpu_probes.outside.untrusted_files import FIRST_OBJECTS

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=30,
)


@given(plain, st.integers(0, 5))
def test_plain_values_come_through_in_every_protocol(value: object, protocol: int) -> None:
    assert unpickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("count", [511, 512, 513, 1025, 5000])
def test_a_long_run_of_plain_values_is_read_whole(count: int) -> None:
    """The reader takes up to 512 values in one go; an honest pickle may hold more in a row."""
    value = [list(range(count)), [2**40 + n for n in range(count)], [1.5, None, True] * count]
    assert unpickle(pickle.dumps(value, 2)) == value


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_value_or_refused(raw: bytes) -> None:
    with suppress(NotAFlightError):  # any other error fails
        unpickle(raw)


@given(plain, st.data())
def test_a_cut_pickle_is_refused(value: object, data: st.DataObject) -> None:
    raw = pickle.dumps(value, 2)
    end = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(NotAFlightError):
        unpickle(raw[:end])


class Runs:
    """What an attacker would put into a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_called(protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / "made"
    raw = pickle.dumps({"entries": [Runs(victim)]}, protocol)
    with pytest.raises(NotAFlightError, match="load or call code"):
        unpickle(raw)
    assert not victim.exists()


HOSTILE = {
    "persistent id": b"Pid\n.",
    "binary persistent id": b"\x80\x02K\x01Q.",
    "import": b"cos\nsystem\n.",
    "stack import": b"\x8c\x02os\x8c\x06system\x93.",
    "instance": b"(S'echo'\nios\nsystem\n.",
    "extension": b"\x82\x01.",
    "huge integer": b"\x8b" + struct.pack("<I", 1 << 20) + b"\x01" * (1 << 20) + b".",
    "huge decimal": b"I" + b"9" * 100_000 + b"\n.",
    "endless line": b"I" + b"9" * 100_000,
    "text beyond the end": b"X\xff\xff\xff\xffabc.",
    "text of 2^63 bytes": b"\x8d" + b"\xff" * 8 + b"abc.",
    "unknown memo": b"h\x07.",
    "memo of 2^32": b"j\xff\xff\xff\xff.",
    "memo of a mark": b"(q\x00.",
    "mark alone": b"(.",
    "append to nothing": b"K\x01a.",
    "append to a text": b"X\x01\x00\x00\x00aK\x01a.",
    "items without a mark": b"]K\x01e.",
    "odd items": b"}(X\x01\x00\x00\x00au.",
    "unhashable key": b"}(]K\x01u.",
    "key of nested tuples": b")" + b"\x85" * 50_000 + b"}(h\x00K\x01u.",
    "two values": b"K\x01K\x02.",
    "no stop": b"K\x01",
    "reference without its number": b"j\x00\x00",
    "what was written before is changed": b"K\x01q\x00K\x02q\x00\x86.",
    "mark under a value": b"(K\x01.",
    "nothing": b"",
    "text file": b"rank 3 said hello\n",
    "set": b"\x80\x04\x8f(K\x01\x90.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused(name: str) -> None:
    with pytest.raises(NotAFlightError):
        unpickle(HOSTILE[name])


FRAME = {"name": "forward", "filename": "model.py", "line": 41}


def resolved(value: Any) -> Any:
    """With what is made later in its place."""
    if isinstance(value, Later):
        value = value.items()
    if isinstance(value, dict):
        return {key: resolved(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(resolved(one) for one in value)
    return value


@given(plain, st.lists(st.integers(0, 2), max_size=2100), st.integers(0, 5))
def test_stacks_that_are_made_later_are_what_they_were(
    value: object, picked: list[int], protocol: int
) -> None:
    frames = [dict(FRAME), dict(FRAME, line=1 << 20), value]
    whole = [frames, *([frames[one] for one in picked] for _ in range(3)), value]
    assert resolved(unpickle(pickle.dumps(whole, protocol), later=True)) == whole


def test_call_stacks_are_made_later() -> None:
    events = [{"size": size, "frames": [FRAME] * 40} for size in range(3)]
    read = unpickle(pickle.dumps([FRAME, events]), later=True)
    assert {type(event["frames"]) for event in read[1]} == {Later}
    assert read[1][2]["frames"].items() == [FRAME] * 40


def test_a_damaged_list_that_is_made_later_holds_nothing() -> None:
    assert unpickle(b"]\x94(h\x07e.", later=True).items() == []
    with pytest.raises(NotAFlightError):
        unpickle(b"]\x94(h\x00eK\x01a.", later=True)


def test_a_memo_number_takes_no_memory() -> None:
    assert unpickle(b"K\x05r\xfe\xff\xff\xff.") == 5


def test_a_list_that_holds_itself_is_only_a_list() -> None:
    held = unpickle(b"]q\x00h\x00a.")
    assert held[0] is held


def test_deep_nesting_ends_no_process() -> None:
    """Deep values are built without recursion and dropped without one."""
    program = (
        "from mgpu_probes.outside.torch_pickles import unpickle\n"
        "held = unpickle(b']' * 200_000 + b'a' * 199_999 + b'.')\n"
        "print(len(held))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "1"


@pytest.mark.parametrize("opcode", [b"]", b"}", b"(", b"N\x94"])
def test_what_would_fill_the_memory_is_refused(opcode: bytes) -> None:
    with pytest.raises(NotAFlightError, match="far more than its size"):
        unpickle(opcode * (FIRST_OBJECTS + 1))


def test_too_long_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mgpu_probes.outside.torch_pickles.MOST_BYTES", 100)
    with pytest.raises(NotAFlightError, match="longer"):
        unpickle(pickle.dumps("x" * 200))
