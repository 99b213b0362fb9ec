"""The whole Markdown report of a job with private names in every text contains none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.case.device_samples import Device, DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import (
    AskedHost,
    Console,
    Error,
    Event,
    Now,
    Outcome,
    State,
    Subject,
    Unexamined,
)
from mgpu_doctor.findings import (
    Branch,
    Culprit,
    Diagnosis,
    Evidence,
    Finding,
    Fix,
    Predicted,
    RankSummary,
    Severity,
)
from mgpu_doctor.report import markdown
from mgpu_doctor.report.redaction.redact import make_redactor, redact_diagnosis
from tests.support import diagnoses
from tests.support.redacted_reports import make_diagnosis, render_page
from tests.support.seeds import at_most
from tests.support.synthetic import Synthetic, make_case, make_rank, records

START = 1000.0


def letters(least: int, most: int) -> st.SearchStrategy[str]:
    """Of which no usual word is made."""
    return st.text("qxzvkj", min_size=least, max_size=most)


NAMES = st.builds("{}{}".format, letters(4, 7), st.sampled_from(["", "3", "07", "-12"]))
DOMAINS = st.builds("{}.{}.org".format, letters(3, 6), letters(3, 6))
HOSTS = st.one_of(NAMES, st.builds("{}.{}".format, NAMES, DOMAINS))
USERS = st.builds("{}{}".format, letters(4, 7), st.sampled_from(["", "1", ".k", "-z"]))
ADDRESSES = st.one_of(
    st.ip_addresses(v=4).filter(lambda one: not (one.is_loopback or one.is_unspecified)),
    st.ip_addresses(network="2000::/3"),
    st.ip_addresses(network="fe80::/10"),
).map(str)

OF_HOSTS = [
    "tcp://{}:29500",
    "[{}]:29500",
    "grpc://{}",
    "bob@{}",
    "MASTER_ADDR={}",
    "connect to {}:4711",
    "{}:984:1021 [0] NCCL INFO",
    '{{"cluster": {{"worker": ["{}:12345"]}}}}',
    "--rdzv_endpoint={}:1",
    "--master-addr {} ",
    "-H {}:4,other9:4",
]
"""That alone tell of a host that is not recorded."""
OF_USERS = ["/home/{}/x", "/gpfs/users/{}/y", "/scratch/{}/z", "USER={}", "{}@login", "~{}/w"]
OF_ADDRESSES = ["{}", "[{}]:29500", "peer {};", "eth0:{}<0>"]
HEALTHY = (
    "rank 3 of torch 2.13.0.1, x==1.2.3.4 at 12:34:56 in file.py:12 on cuda:0 called "
    "c10::Error, torch::autograd and std::vector at 0x7f12a0000000"
)


def filled(some: Callable[[], str], hosts: Sequence[str], home: str) -> Diagnosis:
    """A job that failed, of which every text that somebody could have written is `some()`."""
    steps = records(Synthetic(ranks=len(hosts), steps=30))
    ranks = [
        make_rank(
            number,
            steps[number],
            host=host,
            state=State.DEAD,
            exit_code=1,
            ended=START + 60,
            birth={"framework_version": some(), "device_name": some(), "precision": some()}
            | {"optimizers": [{"class": some()}], "backend": some()},
            events=(Event("note", START + 9, 4, 0.0, 0.0, some()),),
            now=Now("forward", START + 50, 29, some(), None),
            error=Error("ValueError", some(), f"{home}/x.py", 3, "f", some(), START + 60),
        )
        for number, host in enumerate(hosts)
    ]
    case = make_case(
        ranks,
        command=("torchrun", some(), "train.py"),
        cwd=f"{home}/project",
        strategy=some(),
        launcher=some(),
        hosts=tuple(hosts),
        ended=START + 61,
        outcome=Outcome.FAILED,
        exit_code=1,
    )
    gpu = Device(0, name=some(), trouble=f"GPU is lost {some()}")
    case = replace(
        case,
        subject=Subject("recording", f"{home}/runs/{some()}"),
        earlier=(replace(ranks[0], attempt=-1, started=START - 9, ended=START - 5),),
        console=Console(tuple(some() for _ in range(6))),
        signs=(LogMatch("x", 0, "stderr", 1, some(), START + 7),),
        host_samples=tuple(
            HostSample(START, None, None, None, None, None, {rank.pid or 0: (0.0, 1)}, rank.host)
            for rank in ranks
        ),
        device_samples=tuple(
            DeviceSample(START + at, (Device(0, uuid="GPU-1") if not at else gpu,), host=hosts[0])
            for at in range(2)
        ),
    )
    shown = tuple(
        RankSummary(
            rank.rank,
            rank.host,
            rank.pid,
            some(),
            "dead",
            1,
            None,
            29,
            0.1,
            {"forward": 0.1},
            some(),
        )
        for rank in ranks
    )
    findings = tuple(
        Finding(
            "failed-exception",
            severity,
            0.9,
            some(),
            some(),
            tuple(Culprit(rank.rank, rank.host, some(), rank.pid) for rank in ranks[:many]),
            evidence=(Evidence(some(), some(), "", some(), some(), some()),),
            fixes=(
                Fix("one", some(), f"{some()}\n  {some()}", Predicted(0.5, None, some())),
                Fix("two", some(), f"`{some()}`"),
            ),
        )
        for severity, many in ((Severity.CRITICAL, 1), (Severity.WARNING, 2), (Severity.INFO, 0))
    )
    return Diagnosis(
        case,
        shown,
        None,
        some(),
        findings,
        (Unexamined(some(), some(), some()),),
        0.1,
        tree=(Branch(0, (0, 1), 2, (some(), f"main {home}/x.py:3"), "lock", some(), False),),
    )


@st.composite
def private(draw: st.DrawFn) -> tuple[Diagnosis, set[str]]:
    """A diagnosis, and what must not be seen of it."""
    recorded = draw(st.lists(HOSTS, min_size=2, max_size=3, unique_by=str.casefold))
    strangers = draw(st.lists(HOSTS, max_size=2))
    users = draw(st.lists(USERS, min_size=1, max_size=2))
    addresses = draw(st.lists(ADDRESSES, min_size=1, max_size=2))
    snippets = [
        *recorded,
        *(f"core.{one}.7" for one in recorded),
        *(draw(st.sampled_from(OF_HOSTS)).format(stranger) for stranger in strangers),
        *(draw(st.sampled_from(OF_USERS)).format(user) for user in users),
        *(draw(st.sampled_from(OF_ADDRESSES)).format(address) for address in addresses),
    ]
    source = draw(st.randoms(use_true_random=False))

    def some() -> str:
        return " ".join(source.choices(snippets, k=source.randint(1, 3)))

    made = filled(some, recorded, f"/home/{users[0]}")
    domains = {one.partition(".")[2] for one in (*recorded, *strangers)} - {""}
    return made, {*recorded, *strangers, *users, *addresses, *domains}


@given(private())
@settings(max_examples=at_most(60))
def test_nothing_private_is_in_the_markdown(case: tuple[Diagnosis, set[str]]) -> None:
    made, secrets = case
    shown = render_page(made).casefold()
    assert {secret for secret in secrets if secret.casefold() in shown} == set()


def test_what_is_filled_in_reaches_every_part_of_the_markdown() -> None:
    """Else the property above would say nothing. What is not seen is of later findings, or told of
    one rank for all."""
    numbers = count()
    text = markdown.render(filled(lambda: f"word{next(numbers)}w", ("a", "b"), "/home/x"))
    assert sum(f"word{number}w" in text for number in range(next(numbers))) > 45
    for title in ("Evidence", "Ranks", "The last minute", "What happened", "Stacks", "Job"):
        part = text.partition(f"<summary>{title}</summary>")[2].partition("</details>")[0]
        assert "word" in part, title
    assert "1 B resident" in text, "samples and ranks are of the same hosts"


def test_healthy_words_survive_in_every_part() -> None:
    made = filled(lambda: HEALTHY, ("node-a", "node-b"), "/home/alice")
    redacted_, plain = markdown.render(made), markdown.render(made, redact=False)
    cause = next(line for line in plain.splitlines() if line.startswith("- **Why**"))
    assert cause in redacted_.splitlines()
    assert redacted_.count("torch::autograd") == plain.count("torch::autograd")


@given(private())
@settings(max_examples=at_most(20))
def test_twice_is_once(case: tuple[Diagnosis, set[str]]) -> None:
    made, _ = case
    hide = make_redactor(made)
    once = redact_diagnosis(made, hide)
    assert redact_diagnosis(once, hide).findings == once.findings


LONG = 16_000
HOSTILE = (
    *("a:", "::", "1.", "ff:", "fe80::1%", "aabb.ccdd.", "10-0-0-1.", "ip-1-1-1-1.a.", "-"),
    *("[a]:1 ", "hosts:a,", "host      =", "--host=a,", "x://a:b@c", "srun: error: a", "a:1:1 "),
    *("node07-", "node[1,", "a.b.c.de ", "a@", "user=", "~a", "/user/a/", "/home/", "/home/1/"),
    "/scratch/users/",
)
"""What makes a careless expression take hours."""


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_lines_are_no_trouble(unit: str) -> None:
    words = (unit * (LONG // len(unit) + 1))[:LONG]
    for ending in ("", "!"):
        assert len(render_page(make_diagnosis(words + ending))) < 65_536


def test_cut_names_are_not_seen() -> None:
    """What is cut in the middle was redacted before."""
    host = "node07." + "sub." * 12 + "cluster.example.org"
    words = "x" * 80 + f" lost [{host}]:29500 " + "y" * 300
    made = filled(lambda: words, ("node-a", "node-b"), "/home/alice")
    shown = render_page(made)
    assert "node07" not in shown
    assert "example" not in shown
    assert "sub." not in shown


def test_labels_are_the_same_in_all_parts() -> None:
    made = make_diagnosis("node-a and [bigbox]:29500")
    ranks = (replace(made.ranks[0], host="node-b"), *made.ranks[1:])
    case = replace(made.case, console=Console(("[bigbox]:29500 lost node-b",)))
    shown = redact_diagnosis(replace(made, case=case, ranks=ranks))
    assert shown.findings[0].cause == "host-1 and [host-3]:29500"
    assert shown.case.console.tail == ("[host-3]:29500 lost host-2",)
    assert [rank.host for rank in shown.ranks] == ["host-2", *["host-1"] * 3]


def test_hosts_that_were_asked_for_are_hidden_though_no_rank_runs_there() -> None:
    asked = (AskedHost("trainer-login", None, "ssh to trainer-login fails"),)
    diagnosis = diagnoses.straggler()
    hidden = redact_diagnosis(replace(diagnosis, case=replace(diagnosis.case, asked_hosts=asked)))
    (host,) = hidden.case.asked_hosts
    assert "trainer" not in f"{host.name} {host.trouble}"
