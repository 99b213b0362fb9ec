"""How the loading options change a rank's data loader."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from mgpu_trainers import faults
from mgpu_trainers.planting import Planted
from mgpu_trainers.pytorch.common import torch_data
from mgpu_trainers.pytorch.common.process_group import Place
from mgpu_trainers.slow_faults import Slow

pytestmark = pytest.mark.slow

NAMES = ("num_workers", "prefetch_factor", "pin_memory")


def loader(monkeypatch: pytest.MonkeyPatch, device: str, **given: Any) -> tuple[Any, ...]:
    made: list[tuple[Any, ...]] = []

    def record(*_: Any, **settings: Any) -> list[int]:
        made.append(tuple(settings[name] for name in NAMES))
        return [0]

    monkeypatch.setattr(torch_data, "DataLoader", record)
    loading = Namespace(**{"workers": 0, "prefetch": None, "pin": "on", "cache": "off", **given})
    place = Place(0, 2, torch.device(device))
    nobody = Planted([], rank=0)
    next(
        torch_data.endless_batches(
            torch_data.load_digits(),
            place,
            (0, 2),
            nobody,
            size=4,
            loading=loading,
            seed=0,
            batches_taken=0,
        )
    )
    return made[0]


def test_loading_is_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader(monkeypatch, "cuda") == (0, None, True)
    assert loader(monkeypatch, "cuda", pin="off", workers=2, prefetch=5) == (2, 5, False)


def test_on_a_cpu_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader(monkeypatch, "cpu", workers=1) == (1, None, False)


def test_what_was_made_once_is_kept() -> None:
    def first_epochs(cache: str, count: int) -> tuple[list[Any], int]:
        source = torch_data.load_digits()
        planted = Planted(faults.parse(["slow:rank=0,phase=input,ms=0"], 1), rank=0)
        made = 0

        def count_made(_fault: Any, _natural: float) -> float:
            nonlocal made
            made += 1
            return 0.0

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Slow, "spend", count_made)
            loading = Namespace(workers=0, prefetch=None, pin="off", cache=cache)
            place = Place(0, 1, torch.device("cpu"))
            endless = torch_data.endless_batches(
                source, place, (0, 1), planted, size=500, loading=loading, seed=0, batches_taken=0
            )
            return [next(endless) for _ in range(count)], made

    (kept, made), (anew, every_time) = first_epochs("on", 9), first_epochs("off", 9)
    assert (made, every_time) == (3, 9)
    for one, other in zip(kept, anew, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_a_batch_that_a_rank_has_no_samples_for_ends_it_at_once() -> None:
    loading = Namespace(workers=0, prefetch=None, pin="off", cache="off")
    nobody, place = Planted([], rank=0), Place(0, 2, torch.device("cpu"))
    with pytest.raises(SystemExit, match=r"^750 samples of a rank are too few for a batch of 751$"):
        next(
            torch_data.endless_batches(
                torch_data.load_digits(),
                place,
                (0, 2),
                nobody,
                size=751,
                loading=loading,
                seed=0,
                batches_taken=0,
            )
        )
