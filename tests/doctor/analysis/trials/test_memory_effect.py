"""How much memory a treatment saves, from the peaks of a few runs."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.trials.memory_effect import compare_memory

MIB = 1 << 20


def test_peaks_before_and_after_with_their_spread() -> None:
    plain = [600 * MIB, 604 * MIB, 602 * MIB]
    change = compare_memory([(plain[1], 400 * MIB, 404 * MIB, plain[2])], plain)
    assert change is not None
    assert (change.before.bytes, change.before.spread, change.before.runs) == (
        602 * MIB,
        2 * MIB,
        3,
    )
    assert (change.after.bytes, change.after.runs) == (402 * MIB, 2)
    assert change.saved.share == pytest.approx(1 / 3, abs=0.005)
    assert change.saved.is_gain
    assert 0.3 < change.saved.low < change.saved.share < change.saved.high < 0.36


def test_what_equal_runs_differ_by_is_no_saving() -> None:
    plain = [600 * MIB, 500 * MIB, 620 * MIB]
    change = compare_memory([(plain[1], 480 * MIB, 560 * MIB, plain[2])], plain)
    assert change is not None
    assert not change.saved.is_gain
    assert not change.saved.is_loss


def test_peaks_that_never_differ_decide_at_once() -> None:
    change = compare_memory([(100, 90, 90, 100)], [100, 100])
    assert change is not None
    assert [change.saved.low, change.saved.high] == pytest.approx([0.1, 0.1])
    assert change.saved.is_gain
    assert compare_memory([], [100, 100]) is None
