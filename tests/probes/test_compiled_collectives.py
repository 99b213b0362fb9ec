"""Waits in compiled code: seen at torch's own operators, and known to be hidden elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mgpu_probes.inprocess.frameworks.torch import (
    autograd,
    call_sites,
    collectives,
    compiled_collectives,
    process_groups,
    torch_support,
)
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.inprocess.training_objects import UnseenWaits
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

MODULES = (autograd, call_sites, collectives, compiled_collectives, process_groups, torch_support)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> ProbeContext:
    """Of one of two ranks that trains."""
    context = ProbeContext()
    context.on, context.world_size = True, 2
    for module in MODULES:
        monkeypatch.setattr(module, "probe", context, raising=False)
    return context


@pytest.fixture
def operator() -> Iterator[Any]:
    """An operator of torch with one overload."""
    library = torch.library.Library("mgpu_doctor_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
    yield torch.ops.mgpu_doctor_test.twice
    library._destroy()


@pytest.mark.parametrize("overload", [True, False])
def test_an_operator_is_a_wait_and_stays_the_same_key(
    context: ProbeContext, operator: Any, overload: bool
) -> None:
    waits: list[int] = []
    operator = operator.default if overload else operator
    known = {operator: "lowering"}
    compiled_collectives.watch_operator(operator)
    compiled_collectives.watch_operator(operator)
    context.mark = lambda mark, *_: waits.append(mark is not None)
    assert operator(torch.ones(2)).tolist() == [2, 2]
    assert len(waits) == 2, "one beginning and one end"
    with FakeTensorMode():
        operator(torch.ones(2))
    assert len(waits) == 2, "the compiler traces it with tensors of its own"
    assert known == {operator: "lowering"}
    with pytest.raises(RuntimeError, match="at most 1 argument"):
        operator(1, 2)


class Regions:
    """torch's module of compiled regions, one of which issues collectives and waits for some."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, issues: int, waits: int, old: bool = False
    ) -> None:
        """`old`: as in torch 2.5, which has no `post_compile`."""
        issued = 0

        class CompiledFxGraph:
            def post_compile(self) -> None: ...

            if old:
                del post_compile

            def __call__(self) -> None:
                nonlocal issued
                issued += issues
                compiled_collectives.regions.waits += waits

        monkeypatch.setattr(process_groups, "count_issued", lambda: issued)
        monkeypatch.setattr(compiled_collectives, "regions", compiled_collectives._Regions())
        compiled_collectives.patch_regions(
            SimpleNamespace(CompiledFxGraph=CompiledFxGraph)  # type: ignore[arg-type]
        )
        self.region = CompiledFxGraph()


@pytest.mark.parametrize(
    ("issues", "waits", "where"), [(1, 0, UnseenWaits.COMPILED_CODE), (2, 1, None), (0, 0, None)]
)
def test_a_region_that_reduces_without_a_wait_is_noted(
    context: ProbeContext,
    monkeypatch: pytest.MonkeyPatch,
    issues: int,
    waits: int,
    where: UnseenWaits | None,
) -> None:
    regions = Regions(monkeypatch, issues=issues, waits=waits)
    regions.region()
    assert context.objects.unseen_waits is None, "not compiled under the probe: not checked"
    regions.region.post_compile()
    regions.region()
    assert context.objects.unseen_waits is where


def test_a_region_of_an_older_torch_is_checked_from_its_making(
    context: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    Regions(monkeypatch, issues=1, waits=0, old=True).region()
    assert context.objects.unseen_waits is UnseenWaits.COMPILED_CODE


def test_regions_are_checked_some_hundred_times_after_a_compilation(
    context: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = Regions(monkeypatch, issues=0, waits=0)
    asked: list[int] = []

    def issued() -> int:
        asked.append(1)
        return 0

    monkeypatch.setattr(process_groups, "count_issued", issued)
    regions.region.post_compile()
    for _ in range(2 * compiled_collectives._CHECKS):
        regions.region()
    assert len(asked) == 2 * compiled_collectives._CHECKS
    assert context.on


def test_symmetric_memory_hides_waits(context: ProbeContext) -> None:
    module = SimpleNamespace(rendezvous=lambda: "handle")
    compiled_collectives.patch_symmetric_memory(module)  # type: ignore[arg-type]
    assert module.rendezvous() == "handle"
    assert context.objects.unseen_waits is UnseenWaits.SYMMETRIC_MEMORY
    context.objects.note_unseen_waits(UnseenWaits.CUDA_GRAPH)
    assert context.objects.unseen_waits is UnseenWaits.SYMMETRIC_MEMORY, "the first reason stays"
