"""Console text to facts, on real texts of torch 2.13 and on garbage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.console_errors import LINE_LIMIT, ConsoleFacts, Failure, parse_console
from mgpu_probes.outside.tracebacks import (
    MOST_FRAMES,
    MOST_LINES,
    MOST_NOISE,
    Traceback,
    TracebackReader,
)

RECORDED = Path(__file__).parent.parent / "recorded" / "console"


def facts(name: str) -> ConsoleFacts:
    return parse_console((RECORDED / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def root(found: ConsoleFacts) -> Failure:
    (failure,) = [failure for failure in found.failures if failure.first]
    return failure


@pytest.mark.parametrize(
    ("name", "pid", "exit_code", "signal"),
    [
        ("torchrun-kill", 6471, None, 9),
        ("torchrun-segv", 6493, None, 11),
        ("torchrun-abort", 6756, None, 6),
        ("torchrun-raise", 6515, 1, None),
        ("torchrun-exit3", 6611, 3, None),
        ("torchrun-tee-raise", 9086, 1, None),
    ],
)
def test_torchrun_summary_names_the_first_noticed_failure(
    name: str, pid: int, exit_code: int | None, signal: int | None
) -> None:
    found = facts(name)
    first = root(found)
    assert (first.rank, first.local_rank, first.pid) == (2, 2, pid)
    assert (first.exit_code, first.signal) == (exit_code, signal)
    others = [failure for failure in found.failures if not failure.first]
    assert sorted((other.rank, other.signal) for other in others) == [(0, 15), (1, 15), (3, 15)]


def test_signals_that_the_launcher_sent_are_distinguished_from_another() -> None:
    found = facts("torchrun-one-sigterm")
    assert (root(found).rank, root(found).signal) == (1, 15)
    assert {end.rank: end.sent_by_launcher for end in found.failures} == {
        0: True,
        1: False,
        2: True,
    }
    assert {end.sent_by_launcher for end in facts("spawn-kill").failures} == {None}


@pytest.mark.parametrize("name", ["torchrun-raise", "torchrun-tee-raise", "torchrun-record-raise"])
def test_tracebacks_of_several_ranks_are_distinguished(name: str) -> None:
    by_rank = {printed.rank: printed.traceback for printed in facts(name).tracebacks}
    assert set(by_rank) == {1, 2, 3}
    assert by_rank[2].type == "ValueError"
    assert by_rank[2].message == "bad sample at step 5"
    innermost = by_rank[2].frames[-1]
    assert (innermost.file, innermost.line) == ("/home/user/train/ddp.py", 10)
    assert innermost.function == "boom"
    assert "Connection closed by peer" in by_rank[1].message


def test_the_raised_exception_of_a_chain_is_the_last_one() -> None:
    (raised,) = [p.traceback for p in facts("torchrun-chain").tracebacks if p.rank == 2]
    assert raised.type == "RuntimeError"
    assert raised.message == "could not read\nthe sample"
    assert raised.frames[-1].line == 15
    assert "KeyError: 'label'" in raised.text


def test_a_traceback_inside_the_summary_belongs_to_its_rank() -> None:
    found = facts("torchrun-record-raise")
    traceback = root(found).traceback
    assert traceback is not None
    assert (traceback.type, traceback.frames[-1].line) == ("ValueError", 10)


def test_a_summary_whose_head_is_cut_off_names_its_rank() -> None:
    lines = [
        "  rank      : 3 (local_rank: 1)",
        "  exitcode  : -11 (pid: 4711)",
        "  error_file: <N/A>",
        "  traceback : Signal 11 (SIGSEGV) received by PID 4711",
    ]
    (last,) = parse_console([*lines, "=" * 60]).failures
    assert (last.rank, last.local_rank, last.signal, last.first) == (3, 1, 11, True)
    (listed,) = parse_console([*lines, "-" * 60]).failures
    assert (listed.rank, listed.first) == (3, False)


def test_a_traceback_without_the_name_of_its_module_is_read() -> None:
    """Web pages drop `<module>`, and indentation."""
    lines = [
        "Traceback (most recent call last):",
        'File "train.py", line 20, in',
        "main()",
        'File "train.py", line 12, in main',
        "ValueError: no such data",
    ]
    (printed,) = parse_console(lines).tracebacks
    assert [frame.function for frame in printed.traceback.frames] == ["", "main"]


def test_a_script_that_dies_at_import_prints_one_traceback_a_process() -> None:
    found = facts("torchrun-import")
    assert [printed.rank for printed in found.tracebacks] == [None] * 4
    assert {printed.traceback.type for printed in found.tracebacks} == {"ModuleNotFoundError"}
    assert {printed.traceback.frames[-1].line for printed in found.tracebacks} == {25}


def test_a_fatal_error_has_its_stack_outermost_first() -> None:
    (fatal,) = [p.traceback for p in facts("torchrun-record-segv").tracebacks if p.traceback.fatal]
    assert fatal.message == "Segmentation fault"
    assert [frame.function for frame in fatal.frames] == ["<module>", "wrapper", "main", "boom"]


@pytest.mark.parametrize(
    ("name", "exit_code", "signal"),
    [
        ("spawn-raise", 1, None),
        ("spawn-kill", None, 9),
        ("spawn-exitcode", 3, None),
        ("spawn-exit", None, 6),
    ],
)
def test_mp_spawn_names_the_child(name: str, exit_code: int | None, signal: int | None) -> None:
    found = facts(name)
    first = root(found)
    assert (first.local_rank, first.exit_code, first.signal) == (1, exit_code, signal)
    assert found.tracebacks == (), "the parent's traceback is a report, not an end of its own"


def test_mp_spawn_keeps_the_childs_traceback() -> None:
    traceback = root(facts("spawn-raise")).traceback
    assert traceback is not None
    assert traceback.type == "ValueError"
    assert (traceback.frames[-1].file, traceback.frames[-1].line) == (
        "/home/user/train/spawn.py",
        10,
    )


@pytest.mark.parametrize(("name", "signal"), [("torchrun-sigint", 2), ("torchrun-sigterm", 15)])
def test_a_launcher_that_was_asked_to_end_says_so(name: str, signal: int) -> None:
    found = facts(name)
    assert found.asked == signal
    assert found.failures == ()


def test_a_syntax_error_of_the_script_has_no_header() -> None:
    found = parse_console(
        ['  File "train.py", line 3', "    a b", "      ^", "SyntaxError: invalid syntax"]
    )
    (printed,) = found.tracebacks
    assert printed.traceback.type == "SyntaxError"
    assert printed.traceback.frames[-1].line == 3


def test_ordinary_output_says_nothing() -> None:
    assert (
        parse_console(["step 1 loss: 2.3", "INFO: saved", "[rank0]: epoch 2", ""]) == ConsoleFacts()
    )


def test_progress_bars_and_colours_do_not_hide_a_traceback() -> None:
    found = parse_console(
        [
            "  3%|#   |\r  7%|##  |\rTraceback (most recent call last):",
            '\x1b[31m  File "/a.py", line 1, in f\x1b[0m',
            "    boom()",
            "ValueError: \x1b]0;title\x07no\x00\x1b[2J",
        ]
    )
    (printed,) = found.tracebacks
    assert printed.traceback.message == "no"


FRAGMENTS = [
    "Traceback (most recent call last):",
    '  File "/a.py", line 3, in f',
    "ValueError: x",
    "Fatal Python error: Aborted",
    "Current thread 0x0000 (most recent call first):",
    "The above exception was the direct cause of the following exception:",
    "Failures:",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 7)  (SIGKILL)",
    "  traceback : Traceback (most recent call last):",
    "=" * 20,
    "-" * 20,
    "-- Process 1 terminated with the following error:",
    "x.ProcessExitedException: process 1 terminated with signal SIGWHAT",
    "",
]


@given(
    st.lists(
        st.builds(
            lambda prefix, line: prefix + line,
            st.sampled_from(["", "[rank1]: ", "[default0]:", "[rank2]: [rank3]: "]),
            st.sampled_from(FRAGMENTS) | st.text(max_size=60),
        ),
        max_size=60,
    )
)
def test_any_text_is_survived_and_stays_printable(lines: list[str]) -> None:
    found = parse_console(lines)
    told = [printed.traceback for printed in found.tracebacks]
    told += [failure.traceback for failure in found.failures if failure.traceback]
    for traceback in told:
        assert not any(ord(c) < 32 and c not in "\t\n" for c in traceback.text + traceback.message)


def test_endless_lines_and_tracebacks_are_bounded() -> None:
    lines = ["Traceback (most recent call last):"]
    lines += ['  File "/a.py", line 3, in f', "x" * 100_000] * 1_000
    lines += ["ValueError: " + "y" * 100_000]
    for printed in parse_console(lines).tracebacks:
        assert len(printed.traceback.message) <= LINE_LIMIT
        assert len(printed.traceback.text) < 2_000_000


def tracebacks(*lines: str) -> list[Traceback]:
    reader = TracebackReader(labelled=False)
    for number, line in enumerate(lines, 1):
        reader.feed(line, number)
    reader.finish(len(lines))
    return reader.tracebacks


HEADER = "Traceback (most recent call last):"
FRAMES = [f'  File "train.py", line {number}, in step' for number in range(1, 2 * MOST_FRAMES)]
THREAD = "Current thread 0x00007f0000000000 (most recent call first):"


def test_an_endless_recursion_keeps_its_first_frames_and_its_error() -> None:
    (found,) = tracebacks(HEADER, *FRAMES, *["    step()"] * MOST_LINES, "RecursionError: too deep")
    assert (found.type, found.message, len(found.frames)) == (
        "RecursionError",
        "too deep",
        MOST_FRAMES,
    )
    assert len(found.text.splitlines()) <= MOST_LINES + 1
    (fatal,) = tracebacks("Fatal Python error: Segmentation fault", THREAD, *FRAMES, "")
    assert len(fatal.frames) == MOST_FRAMES


def test_what_others_print_into_a_traceback_ends_it_after_a_while() -> None:
    noise = ["step 7 loss 0.25"] * (MOST_NOISE + 1)
    error = "ValueError: too late"
    assert [traceback.type for traceback in tracebacks(HEADER, FRAMES[0], *noise[2:], error)] == [
        "ValueError"
    ]
    assert tracebacks(HEADER, FRAMES[0], *noise, error) == []
    fatal = ["Fatal Python error: Aborted", THREAD, FRAMES[0]]
    (found,) = tracebacks(*fatal, *noise, FRAMES[1], "")
    assert len(found.frames) == 1


def test_a_label_in_capitals_is_no_exception() -> None:
    assert tracebacks(HEADER, FRAMES[0], "INFO: still here", "KeyError: 'x'")[0].type == "KeyError"
