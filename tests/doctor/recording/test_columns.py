"""Records by field are read like the records themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.recording.column_file import ColumnFile
from mgpu_doctor.recording.columns import Columns, Packer, phase_of
from mgpu_doctor.recording.record_chunks import chunks
from mgpu_doctor.recording.records import STEP_DTYPE, Array

FIELDS = STEP_DTYPE.names or ()
SOME: list[Any] = [
    np.s_[:],
    np.s_[3:],
    np.s_[-4:],
    np.s_[::3],
    np.s_[9:2],
    np.arange(12) % 3 == 0,
    np.zeros(12, np.bool_),
    np.array([7, 2, 2]),
]


def records(count: int = 12, seed: int = 0, differing: frozenset[str] = frozenset(FIELDS)) -> Array:
    """Any bytes in the fields that differ, the same ones in all records elsewhere."""
    random = np.random.default_rng(seed)
    made: Array = np.zeros(count, STEP_DTYPE)
    for name in FIELDS:
        values = made[name].copy()
        raw = random.bytes(values.nbytes)
        values[:] = np.frombuffer(raw, values.dtype).reshape(values.shape)
        made[name] = values if name in differing else values[:1]
    return made


def same(one: Any, other: Any) -> bool:
    """Bit by bit, as numbers that are none differ from themselves."""
    return bool(one.dtype == other.dtype and one.shape == other.shape) and (
        one.tobytes() == other.tobytes()
    )


@given(st.integers(0, 2**20), st.frozensets(st.sampled_from(FIELDS)), st.integers(0, 20))
def test_every_field_is_that_of_the_records(
    seed: int, differing: frozenset[str], count: int
) -> None:
    whole = records(count, seed, differing) if count else np.zeros(0, STEP_DTYPE)
    packed = Packer().pack(whole)
    assert len(packed) == count
    assert all(same(packed[name], whole[name]) for name in FIELDS)
    assert all(same(phase_of(packed, n), phase_of(whole, n)) for n in range(10))
    copied = packed.copy()
    assert all(same(copied[name], whole[name]) for name in FIELDS)


@pytest.mark.parametrize("key", SOME, ids=str)
@pytest.mark.parametrize("differing", [frozenset(FIELDS), frozenset({"end_ns", "phases"})])
def test_some_of_them_are_chosen_as_in_an_array(key: Any, differing: frozenset[str]) -> None:
    whole = records(differing=differing)
    chosen = Packer().pack(whole)[key]
    assert isinstance(chosen, Columns)
    assert len(chosen) == len(whole[key])
    assert all(same(chosen[name], whole[key][name]) for name in FIELDS)


def test_one_of_them_is_a_record() -> None:
    whole = records()
    packed = Packer().pack(whole)
    assert all(same(packed[3][name], whole[3][name]) for name in FIELDS)
    assert packed[-1]["wall_ns"] == whole["wall_ns"][-1]
    with pytest.raises(IndexError):
        packed[12]


def test_what_does_not_differ_takes_no_memory_and_counters_are_shared() -> None:
    packer = Packer()
    one, other = (packer.pack(records(differing=frozenset({"seq", "end_ns"}))) for _ in range(2))
    assert one["tokens"].strides == (0,)
    assert np.shares_memory(one["seq"], other["seq"])
    assert not np.shares_memory(one["end_ns"], other["end_ns"])
    apart = packer.pack(records(seed=1))
    assert not np.shares_memory(one["seq"], apart["seq"])


def test_nobody_writes_to_what_others_share() -> None:
    packed = Packer().pack(records(differing=frozenset({"seq", "phases"})))
    for name in ("seq", "tokens"):
        with pytest.raises(ValueError, match="read-only"):
            packed[name][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        packed.phase(0)[0] = 1.0


def test_ranks_that_are_packed_together_are_read_side_by_side() -> None:
    """Also where a field differs on one rank only, and ranks have different numbers of records."""
    whole = [
        records(12, 0, frozenset({"seq", "end_ns", "phases"})),
        records(9, 1),
        records(12, 2, frozenset({"seq", "end_ns", "loss"})),
        records(0),
        records(12, 3, frozenset({"end_ns"})),
    ]
    with_file, alone = Packer(ColumnFile()).pack_all(whole), records(12, 4)
    for packed in (with_file, Packer().pack_all(whole)):
        for columns, of_rank in zip(packed, whole, strict=True):
            assert all(same(columns[name], of_rank[name]) for name in FIELDS)
        ranks: list[Array | Columns] = [
            packed[0][2:],
            packed[4][2:],
            packed[1],
            alone,
            packed[2][2:],
            packed[3],
        ]
        rows = [slice(1, 7)] * 5 + [slice(None)]
        found = list(chunks(ranks, rows))
        assert sorted(chunk.places.tolist() for chunk in found) == [[0, 1, 4], [2], [3], [5]]
        for chunk in found:
            for name in (*FIELDS, *range(10)):
                if name != "phases":
                    each = [_of_phase(ranks[at], name)[rows[at]] for at in chunk.places]
                    assert same(chunk[name], np.stack(each))


def _of_phase(steps: Array | Columns, name: str | int) -> Any:
    return steps[name] if isinstance(name, str) else phase_of(steps, name)
