"""What older versions of torch have under other names, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mgpu_probes.inprocess import worker_server
from mgpu_probes.inprocess.frameworks.torch import collective_timing, ddp
from mgpu_probes.inprocess.frameworks.torch import flight_recorder_handlers as recorder
from mgpu_probes.inprocess.probe_context import ProbeContext

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


class EvalFrame:
    """The compiler's part that older versions have: a callback in exchange for another."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def set_eval_frame(self, callback: Any) -> Any:
        before, self.callback = self.callback, callback
        return before


@pytest.mark.parametrize("callback", [None, False, len])
def test_the_compilers_callback_is_read_and_left_as_it_was(callback: Any) -> None:
    older = EvalFrame(callback)
    read = ddp._read_compiler(older)
    assert read() is callback
    assert older.callback is callback


def test_the_installed_torch_reads_it_alike_in_both_ways() -> None:
    eval_frame = torch._C._dynamo.eval_frame
    older = SimpleNamespace(set_eval_frame=eval_frame.set_eval_frame)
    assert ddp._read_compiler(older)() is ddp._read_compiler(eval_frame)() is None
    assert ddp._read_compiler(SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("backend", "names", "served"),
    [
        ("gloo", ["_dump_nccl_trace", "_dump_nccl_trace_json"], set()),
        ("nccl", ["_dump_nccl_trace"], {"fr_trace", "fr_trace_plain"}),
        ("gloo", ["_dump_fr_trace", "_dump_nccl_trace"], {"fr_trace", "fr_trace_plain"}),
    ],
)
def test_a_gloo_job_is_not_asked_for_nccls_recorder(
    monkeypatch: pytest.MonkeyPatch, backend: str, names: list[str], served: set[str]
) -> None:
    context = ProbeContext()
    context.objects.backend = backend
    monkeypatch.setattr(recorder, "probe", context, raising=False)
    monkeypatch.setattr(collective_timing, "serve", lambda: None)
    monkeypatch.setattr(worker_server, "handlers", {})
    older = SimpleNamespace(**{name: lambda *_: b"dump" for name in names})
    monkeypatch.setattr(torch._C, "_distributed_c10d", older)
    recorder._serve_flight_records()
    assert set(worker_server.handlers) == served
    assert {ask() for ask in worker_server.handlers.values()} <= {b"dump"}
