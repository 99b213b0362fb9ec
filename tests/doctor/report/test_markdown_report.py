"""The Markdown report: untrusted text never becomes markup, and private names are hidden."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mgpu_doctor.case.model import Gap, Unexamined
from mgpu_doctor.report import html, markdown
from mgpu_doctor.report.redaction.redact import redact_diagnosis
from tests.support import diagnoses


def outside_fences(text: str) -> str:
    """What is left when every code block is taken out, as CommonMark closes them."""
    left, bars = [], ""
    for line in text.splitlines():
        fence = re.match(r"`{3,}", line)
        if not bars and fence:
            bars = fence.group()
        elif bars and re.fullmatch(f"`{{{len(bars)},}}", line):
            bars = ""
        elif not bars:
            left.append(line)
    assert not bars, "a code block is never closed"
    return "\n".join(left)


@pytest.mark.parametrize("name", diagnoses.ALL)
@pytest.mark.parametrize("redact", [True, False])
def test_words_stay_words(name: str, redact: bool) -> None:
    text = outside_fences(markdown.render(diagnoses.ALL[name], redact=redact))
    tags = set(re.findall(r"<[^>]*>", text))
    assert tags <= {
        "<details>",
        "<details open>",
        "</details>",
        "<summary>",
        "</summary>",
        "<!-- -->",
    }
    assert text.count("<details") == text.count("</details>")
    assert not re.search(r"@\w", text), "nobody is mentioned"
    assert "\x1b" not in text
    assert len(text) < 65_536


def test_hostile_code_cannot_leave_its_fence() -> None:
    text = markdown.render(diagnoses.failed(), redact=False)
    assert "</details></pre>" in text
    assert "</pre>" not in outside_fences(text)


@pytest.mark.parametrize(
    ("words", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("`x`", r"\`x\`"),
        ("[a](b)", r"\[a\](b)"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("*a*_b_~c~", r"\*a\*\_b\_\~c\~"),
        ("see https://x.y", r"see https\://x.y"),
        ("www.x.y", r"www\.x.y"),
        ("@someone", "@<!-- -->someone"),
        ("#12", r"\#<!-- -->12"),
        ("1. one", "1<!-- -->. one"),
        ("1)", "1<!-- -->)"),
        ("19.8 ms", "19.8 ms"),
        ("- one", r"\- one"),
        ("two\nlines", "two lines"),
    ],
)
def test_escape(words: str, escaped: str) -> None:
    assert markdown.escape(words) == escaped


def test_tables_keep_their_columns() -> None:
    text = outside_fences(markdown.render(diagnoses.failed(), redact=False))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows
    tables: list[set[int]] = []
    for line in rows:
        cells = len(re.findall(r"(?<!\\)\|", line))
        if set(line) <= set("| -"):
            tables.append({cells})
        elif tables:
            tables[-1].add(cells)
    assert tables
    # The header of a table is counted with the table before it: at most two counts each.
    assert all(len(counts) <= 2 for counts in tables)
    assert len(tables[-1]) == 1


def test_names_of_hosts_and_homes_are_redacted() -> None:
    made = diagnoses.straggler()
    text = markdown.render(made)
    assert "node-a" not in text
    assert "host-1" in text
    assert "node-a" in markdown.render(made, redact=False)


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        ("at /home/someone/project/train.py:3", "at ./train.py:3"),
        ("/home/someone/project", "."),
        ("/home/someone/project2/x", "~/project2/x"),
        ("/root/x and /rooted/y", "~/x and /rooted/y"),
        ("node-a:29500", "host-1:29500"),
        ("node-ab and my-node-a", "node-ab and my-host-1"),
        ("/homes/bob/x, /home/users/bob/x, /nfs/users/bob", "~/x, ~/x, ~"),
        ("data=/scratch/someone/x of someone@login", "data=/scratch/user/x of user@login"),
        ("/scratch/someone-else and someone", "/scratch/user and user"),
        ("[10.1.2.3]:4711 and tcp://10.1.2.3:29500", "[address]:4711 and tcp://address:29500"),
        ("[fe80::1%eth0]:4711, [::1]:3", "[address]:4711, [::1]:3"),
        ("[127.0.0.1]:4711, curand 10.3.2.106", "[127.0.0.1]:4711, curand 10.3.2.106"),
    ],
)
def test_redaction(words: str, hidden: str) -> None:
    made = diagnoses.straggler()
    made = replace(made, findings=(replace(made.findings[0], cause=words),))
    assert redact_diagnosis(made).findings[0].cause == hidden


def test_the_host_where_ranks_meet_is_redacted() -> None:
    made = diagnoses.straggler()
    command = ("torchrun", "--rdzv-endpoint=login7.cluster:29500", "train.py")
    case = replace(made.case, job=replace(made.case.job, command=command))
    cause = "no answer from login7.cluster:29500 (login7)"
    made = replace(made, case=case, findings=(replace(made.findings[0], cause=cause),))
    assert "login7" not in markdown.render(made)


def test_commands_in_the_headline_are_code() -> None:
    made = diagnoses.failed()
    title = "its limit (`ulimit -v`) of 8 GiB <b> was reached"
    made = replace(made, findings=(replace(made.findings[0], title=title),))
    assert (
        markdown.render(made)
        .splitlines()[0]
        .endswith("(`ulimit -v`) of 8 GiB &lt;b&gt; was reached")
    )
    page = html.render(made)
    assert "(<code>ulimit -v</code>) of 8 GiB &lt;b&gt; was reached</h1>" in page
    assert "<title>its limit (ulimit -v) of 8 GiB &lt;b&gt;" in page


def test_where_nothing_was_found_it_shows_why() -> None:
    gap = Unexamined(
        "in-process probe", "no process became a rank", "look at what it printed", Gap.PROCESS_PROBE
    )
    empty = replace(diagnoses.straggler(), findings=(), ranks=(), unexamined=(gap,))
    assert "<details open>\n<summary>Not examined" in markdown.render(empty)
    assert "<details open>" not in markdown.render(diagnoses.straggler())


def test_long_prose_is_no_code() -> None:
    made = diagnoses.straggler()
    fix = replace(made.findings[0].fixes[0], how="Make *batches* ahead, " * 10)
    text = markdown.render(replace(made, findings=(replace(made.findings[0], fixes=(fix,)),)))
    assert "```" not in text
    assert r"Make \*batches\* ahead" in text


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("run `a_b *` now", "run `a_b *` now"),
        ("a ` alone_", r"a \` alone\_"),
        ("`<b>` and `@x` and `a|b`", r"\`&lt;b&gt;\` and \`@<!-- -->x\` and \`a\|b\`"),
        ("- `x`", r"\- `x`"),
    ],
)
def test_between_backticks_is_code_where_that_is_safe(words: str, written: str) -> None:
    assert markdown.prose(words) == written


def test_what_ran_is_reported_and_redacted() -> None:
    made = diagnoses.straggler()
    rendered = markdown.render(made)
    assert "| command | torchrun --nproc-per-node 4 train.py |" in rendered
    assert "| hosts | host-1 |" in rendered
