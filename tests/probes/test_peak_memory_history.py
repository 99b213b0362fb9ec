"""Histories of peak memory, with the largest batch so far."""

from __future__ import annotations

from mgpu_probes.inprocess.memory_samples import Memory, PeakMemoryHistory

MIB = 1 << 20
SECOND = 1_000_000_000


def climbed(*steps: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """Rungs of steps with so many tokens and MiB."""
    history = PeakMemoryHistory()
    for step, (tokens, peak) in enumerate(steps):
        history.note_batch(2, tokens)
        history.note_peak(step, peak * MIB)
    return history.peaks


def test_a_rung_where_the_batch_or_the_peak_has_risen() -> None:
    found = climbed((100, 500), (90, 500), (200, 500), (150, 600), (150, 601), (201, 601))
    assert found == [
        (0, 2, 100, 500 * MIB),
        (2, 2, 200, 500 * MIB),
        (3, 2, 200, 600 * MIB),
    ]


def test_peaks_that_somebody_has_reset_begin_anew_with_the_batches() -> None:
    found = climbed((100, 500), (900, 800), (100, 300), (150, 350), (160, 380))
    assert found == [(3, 2, 150, 350 * MIB), (4, 2, 160, 380 * MIB)]


def test_a_ladder_is_bounded_and_keeps_its_ends() -> None:
    found = climbed(*((100 + step, 500 + 10 * step) for step in range(1000)))
    assert len(found) <= 32
    assert (found[0][0], found[-1][0]) == (0, 999)


def test_memory_tells_the_ladders_that_it_climbed() -> None:
    memory = Memory()
    assert memory.describe() == {"memory_peaks": {}}
    memory.device = lambda: (5, 7 * MIB)
    memory.at(SECOND, 0, 2, 64)
    told = memory.describe()["memory_peaks"]
    assert told["device"] == [(0, 2, 64, 7 * MIB)]
    ((*load, peak),) = told["host"]
    assert load == [0, 2, 64]
    assert peak > 0.9 * memory.at(2 * SECOND)[1] > 0, "the most it had is no less than it has"
    memory.start()
    assert memory.describe() == {"memory_peaks": {}}, "a forked child has climbed nothing yet"


def test_steps_between_readings_count_as_well() -> None:
    memory = Memory()
    memory.at(SECOND, 0, 2, 64)
    memory.at(40 * SECOND, 1, 2, 64)
    memory.at(40 * SECOND + 1, 2, 2, 999)
    memory.at(41 * SECOND + 1, 3, 2, 10)
    assert memory.on_host.peaks[-1][:3] == (3, 2, 999)
