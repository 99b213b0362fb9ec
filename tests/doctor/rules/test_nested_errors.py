"""Exceptions that are wrapped in others, and those raised in the backward pass."""

from __future__ import annotations

from dataclasses import replace

from mgpu_probes.outside.console_errors import parse_console

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.postmortem.exception_texts import original, wrapped_in
from mgpu_doctor.case.captured_console import error_of
from mgpu_doctor.case.model import Console, Error
from mgpu_doctor.findings import Finding
from mgpu_doctor.rules.training.loss import RULES as LOSS
from tests.support.ending_records import failure_findings
from tests.support.failure_cases import AT, dead, error, failed_job, logged_end, secondary_failure
from tests.support.logs import RECORDED

WORKER_LOOP = (
    '  File "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in '
    "_worker_loop\n    data = fetcher.fetch(index)\n"
)
WRAPPED = (
    "Caught KeyError in DataLoader worker process 1.\n"
    "Original Traceback (most recent call last):\n"
    f"{WORKER_LOOP}"
    '  File "/home/u/data.py", line 31, in __getitem__\n    return self.index[name]\n'
    "           ~~~~~~~~~~^^^^^^\n"
    "KeyError: 'img_0042'\n"
)
IN_PLACE = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: [torch.FloatTensor [4, 8]], which is output 0 of Sigmoid, is at version 1; "
    "expected version 0 instead. Hint: enable anomaly detection to find the operation that failed "
    "to compute its gradient, with torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
BACKWARD = (
    "Traceback (most recent call last):\n"
    '  File "/home/u/train.py", line 87, in step\n    loss.backward()\n'
    '  File "/usr/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in '
    "_engine_run_backward\n"
    "    return Variable._execution_engine.run_backward(  # Calls into the C++ engine\n"
)


def only(raised: Error) -> Finding:
    (finding,) = failure_findings(
        failed_job([secondary_failure(0), dead(1, exit_code=1, error=raised)])
    )
    return finding


def test_the_line_in_the_worker_is_named_not_that_of_who_waited_for_it() -> None:
    finding = only(replace(error("KeyError", WRAPPED), at=AT))
    assert "raised KeyError at data.py:31: 'img_0042' in its DataLoader worker process 1" in (
        finding.title
    )
    assert "in __getitem__() of DataLoader worker process 1" in finding.cause
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_a_replica_of_data_parallel_is_a_wrapper_too() -> None:
    text = WRAPPED.replace("DataLoader worker process 1", "replica 1 on device 1")
    assert wrapped_in(error("KeyError", text)) == "replica 1 on device 1"
    assert original(error("KeyError", text)).line == 31


def test_a_worker_in_which_no_code_of_the_users_ran_keeps_the_line_of_the_loop() -> None:
    text = (
        "Caught RuntimeError in DataLoader worker process 0.\n"
        f"Original Traceback (most recent call last):\n{WORKER_LOOP}"
        "RuntimeError: stack expects each tensor to be equal size\n"
    )
    raised = original(error("RuntimeError", text))
    assert (raised.file, raised.line) == ("/home/u/train.py", 87)
    assert raised.message == "stack expects each tensor to be equal size"


def test_a_python_function_that_a_graph_called_is_named_not_the_line_of_the_graph() -> None:
    lines = (RECORDED / "console/failed/tensorflow-python-function.log").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if "InvalidArgumentError: Graph" in line)
    end = next(n for n, line in enumerate(lines) if "{{node PyFunc}}" in line)
    message = "\n".join(("Graph execution error:", *lines[at + 1 : end]))
    traceback = message[-5000:]  # a black box keeps the end
    finding = only(replace(error("InvalidArgumentError", message), at=AT, traceback=traceback))
    assert finding.code == "failed-exception"
    assert "raised ValueError at _planted.py:62: sample 8 cannot be used" in finding.title
    of_an_operation = traceback.partition("Error in user-defined function")[0]
    raised = replace(error("InvalidArgumentError", message), traceback=of_an_operation)
    assert original(raised) == raised


def test_a_torn_or_made_up_wrapper_stays_as_it_is() -> None:
    for text in (WRAPPED[:60], WRAPPED[:200], "Caught KeyError in DataLoader worker process 1."):
        raised = error("KeyError", text)
        assert original(raised) == raised


def test_the_console_of_an_unlabelled_process_keeps_the_workers_traceback() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 9, in <module>',
        "    for batch in loader:",
        *f"KeyError: {WRAPPED}".splitlines(),
        "epoch 1 was interrupted",
    ]
    (printed,) = parse_console(lines).tracebacks
    raised = original(error_of(printed.traceback))
    assert (raised.type, raised.file, raised.line) == ("KeyError", "/home/u/data.py", 31)


def test_an_unlabelled_message_goes_on_while_it_is_indented() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 9, in <module>',
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "\tsize mismatch for first.weight",
        "saved nothing",
        "\tan indented line of somebody else",
    ]
    (printed,) = parse_console(lines).tracebacks
    assert printed.traceback.message == (
        "Error(s) in loading state_dict for Net:\n\tsize mismatch for first.weight"
    )


def test_the_backward_pass_is_distinguished_from_its_line() -> None:
    trace = f"{BACKWARD}RuntimeError: {IN_PLACE}"
    finding = only(replace(error("RuntimeError", IN_PLACE), at=AT, traceback=trace))
    assert finding.code == "failed-exception"
    assert "train.py:87" in finding.title
    assert "the line shown is the call that started the backward pass" in finding.cause
    assert any("set_detect_anomaly(True)" in fix.how for fix in finding.fixes)


def test_the_operation_is_named_where_torch_names_it() -> None:
    message = "Function 'PowBackward0' returned an invalid gradient at index 0"
    trace = f"{BACKWARD}RuntimeError: {message}"
    finding = only(replace(error("RuntimeError", message), at=AT, traceback=trace))
    assert "the gradient of `PowBackward0`" in finding.cause


def test_an_exception_in_a_backward_of_the_users_own_is_an_ordinary_one() -> None:
    trace = (
        f'{BACKWARD}  File "/home/u/ops.py", line 7, in backward\n    raise ValueError\nValueError'
    )
    finding = only(replace(error("ValueError", "no gradient"), at=AT, traceback=trace))
    assert "backward pass" not in finding.cause


def test_a_lost_connection_that_every_rank_printed_namelessly_is_nobodys_end() -> None:
    """Before init_process_group is through, torch labels no traceback with its rank."""
    vain = error("torch.distributed.DistStoreError", "wait timeout after 4000ms, keys: /0/2")
    summary = (logged_end(rank=1, exit_code=1, first=True), logged_end(rank=0, signal=15))
    for printed, blamed in ((2, []), (1, [1])):
        ends = (*summary, *(logged_end(error=vain, source="traceback") for _ in range(printed)))
        (finding,) = failure_findings(failed_job([], console=Console(ends=ends)))
        assert [culprit.rank for culprit in finding.culprits] == blamed


def test_torchs_advice_to_look_for_nans_is_no_lost_loss() -> None:
    raised = replace(error("RuntimeError", IN_PLACE), at=AT)
    case = failed_job([secondary_failure(0), dead(1, exit_code=1, error=raised)], console=Console())
    (rule,) = [rule for rule in LOSS if rule.code == "loss-nan"]
    assert list(rule.examine(measure(case), rule.defaults)) == []
