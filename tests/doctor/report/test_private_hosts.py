"""Host names are hidden wherever frameworks, launchers and users write them, and each has one label
in the report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mgpu_doctor.report import markdown
from mgpu_doctor.report.redaction.redact import redact_diagnosis
from tests.support import diagnoses
from tests.support.loops import over
from tests.support.redacted_reports import make_diagnosis, redact_words, render_page

HOSTS = ["node07", "node07.cluster.example.org", "bigbox", "gpu-a100-3.corp", "NODE07"]
TF_CONFIG = json.dumps(
    {"cluster": {"worker": ["{}:12345", "other:12345"]}, "task": {"type": "worker", "index": 0}}
)
COMMANDS = [
    ("torchrun", "--rdzv_endpoint={}:29500", "train.py"),
    ("torchrun", "--rdzv-endpoint", "{}:29500", "train.py"),
    ("torchrun", "--rdzv-endpoint", "{}", "train.py"),
    ("torchrun", "--rdzv_endpoint={}", "train.py"),
    ("torchrun", "--rdzv-conf", "timeout=900,endpoint={}:29500,is_host=1", "train.py"),
    ("python", "-m", "torch.distributed.launch", "--master_addr", "{}", "train.py"),
    ("python", "-m", "torch.distributed.launch", "--master-addr={}", "train.py"),
    ("env", "MASTER_ADDR={}", "MASTER_PORT=29500", "python", "train.py"),
    ("env", "PET_RDZV_ENDPOINT={}:29500", "torchrun", "train.py"),
    ("env", "NCCL_COMM_ID={}:29500", "python", "train.py"),
    ("env", "HOSTNAME={}", "python", "train.py"),
    ("accelerate", "launch", "--main_process_ip", "{}", "train.py"),
    ("train.py", "--dist-url", "tcp://{}:23456"),
    ("train.py", "--init_method=tcp://alice:secret@{}:23456"),
    ("train.py", "--coordinator_address={}:1234"),
    ("uvicorn", "--host", "{}", "app"),
    ("mpirun", "-np", "8", "-H", "{}:4,other:4", "python", "train.py"),
    ("mpirun", "--host", "other,{}:4", "python", "train.py"),
    ("horovodrun", "-H", "{}:4", "python", "train.py"),
    ("deepspeed", "--include", "other1:0@{}:0,2", "train.py"),
    ("ray", "start", "--address=ray://{}:10001"),
    ("ssh", "alice@{}", "python", "train.py"),
    (
        "env",
        "TF_CONFIG=" + TF_CONFIG.replace("{", "{{").replace("}", "}}").replace("{{}}", "{}"),
    ),
]
MESSAGES = [
    "[c10d] The client socket has failed to connect to [{}]:29500 (errno: 111).",
    "The IPv6 network addresses of ({}, 29500) cannot be retrieved (gai error: -2).",
    "timed out while trying to connect to ({}, 29500).",
    "Connection closed by peer [{}]:1440.",
    "{}:984:1021 [0] NCCL INFO Using network Socket",
    "socketProgress: Connection closed by remote peer {}<47861>",
    "Started server with target: grpc://{}:24061",
    "ray://{}:10001 does not answer",
    "tcp://{}:29500",
    "failed to connect to {}:29500: refused",
    "srun: error: {}: task 3: Killed",
    "*** STEP 19438.0 ON {} CANCELLED AT 2023-03-06T03:17:51 ***",
    "ssh: Could not resolve hostname {}: Name or service not known",
    'GrpcServer: {{"worker": ["{}:12345", "x9:12345"]}} is the cluster',
    "MASTER_ADDR={}",
    "master_addr={}",
    "hostname: {}",
    "bob@{}: permission denied",
    "http://{}:6006/#scalars",
]
"""Of which the place in them says that it is a host."""


@over("host", HOSTS)
@over("command", COMMANDS)
def test_a_host_of_the_command_is_hidden_in_the_whole_report(
    command: tuple[str, ...], host: str
) -> None:
    started = tuple(one.format(host) for one in command)
    made = make_diagnosis(
        f"no answer from {host}; {host} is down (see log-{host}.txt)", command=started
    )
    page = render_page(made)
    assert host.casefold() not in page.casefold()
    assert not [words for words in ("example.org", "alice", "secret") if words in page]


@over("host", HOSTS)
@over("message", MESSAGES)
def test_a_host_of_a_message_is_hidden_there_and_elsewhere(message: str, host: str) -> None:
    words = f"{message.format(host)}\nlater {host} was gone"
    assert host.casefold() not in render_page(make_diagnosis(words)).casefold()
    assert redact_words(words).count("host-2") == 2, "one name, one label"


@pytest.mark.parametrize(
    "words",
    [
        "Local host:   node07",
        "remote host node07 hung up",
        "the peer node07 is gone",
        "node 'node07.cluster_4711_0' has joined",
        "addr=node07.cluster.example.org",
        "host=node07",
        "on node07.cluster.example.org:29500 since today",
        "node07:29500 refused",
        "SLURM_JOB_NODELIST=node[07-09,12]",
        "srun -w node[07-09] python train.py",
        "srun: error: node[07-08]: tasks 0-3: Killed",
        "gpu07.hpc.uni-a.de is down",
        "mail to jane.doe@hpc.uni-a.de",
        "login.hpc.internal",
        "ip-10-0-1-7.ec2.internal",
        "ip-10-0-1-7",
        "log of ip-10-0-1-7.txt",
        "ip-0A000107",
        "ec2-54-12-3-4.compute-1.amazonaws.com",
        "10-0-1-7.default.pod.cluster.local",
        "/data/events.out.ip-10-0-1-7.4711.0",
    ],
)
def test_a_host_that_looks_like_one_is_hidden(words: str) -> None:
    shown = redact_words(words)
    for secret in ("node07", "node[", "example", "10-0-1-7", "54-12", "0A0001", "uni-a", "hpc"):
        assert secret not in shown, shown
    assert "jane" not in shown


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        ("node-a", "host-1"),
        ("node-a:29500, NODE-A", "host-1:29500, host-1"),
        ("node-a.cluster.example.org:29500", "host-1:29500"),
        (
            "core.node-a.4711, node-a_4711_0, my-node-a",
            "core.host-1.4711, host-1_4711_0, my-host-1",
        ),
        ("node-ab and node-abc", "node-ab and node-abc"),
        ("Straße_İ_NODE-A", "Straße_İ_host-1"),
    ],
)
def test_a_recorded_host_is_hidden_in_longer_words(words: str, hidden: str) -> None:
    assert redact_words(words) == hidden


def test_hosts_numbered_alike_and_of_one_domain_are_hidden() -> None:
    made = diagnoses.straggler()
    hosts = ("node07.cluster.example.org",)
    cause = "node08 and node12.cluster.example.org died, login.cluster.example.org did not; "
    cause += "all of node[07-12], search cluster.example.org"
    made = replace(made, findings=(replace(made.findings[0], cause=cause),))
    job = replace(made.case.job, hosts=hosts)
    shown = redact_diagnosis(replace(made, case=replace(made.case, job=job))).findings[0].cause
    assert shown.startswith("host-5 and host-6 died, host-4 did not; all of hosts, search ")
    assert "node" not in shown
    assert "cluster" not in shown


def test_one_host_has_one_label() -> None:
    host = "node07.cluster.example.org"
    command = ("torchrun", f"--rdzv_endpoint={host}:29500", "train.py")
    made = make_diagnosis(f"[{host}]:29500 and node07 and NODE07", command=command)
    made = replace(made, ranks=(replace(made.ranks[0], host="node07"), *made.ranks[1:]))
    shown = redact_diagnosis(made)
    label = shown.ranks[0].host
    assert label in {"host-1", "host-2"}
    assert shown.ranks[1].host not in {label, "node-a"}
    assert shown.findings[0].cause == f"[{label}]:29500 and {label} and {label}"
    assert shown.case.job.command[1] == f"--rdzv_endpoint={label}:29500"


def test_a_host_that_is_an_address_keeps_its_label() -> None:
    made = make_diagnosis("lost 10.0.0.7:29500, 10.0.0.8 and 2001:DB8::0007")
    ranks = [replace(made.ranks[0], host="10.0.0.7"), replace(made.ranks[1], host="2001:db8::7")]
    shown = redact_diagnosis(replace(made, ranks=(*ranks, *made.ranks[2:])))
    first, second = shown.ranks[0].host, shown.ranks[1].host
    assert first != second
    assert {first, second} <= {"host-1", "host-2", "host-3"}
    assert shown.findings[0].cause == f"lost {first}:29500, address and {second}"


def test_a_recorded_host_may_have_any_name() -> None:
    made = make_diagnosis("lost old (node) a: 3 times")
    made = replace(made, ranks=(replace(made.ranks[0], host="Old (node) a"), *made.ranks[1:]))
    shown = redact_diagnosis(made)
    assert shown.findings[0].cause == f"lost {shown.ranks[0].host}: 3 times"
    assert shown.ranks[0].host == "host-2"


def test_labels_are_no_names_of_hosts() -> None:
    made = make_diagnosis("alpha talks to host-1")
    job = replace(made.case.job, hosts=("alpha", "host-1"))
    ranks = [replace(made.ranks[0], host="alpha"), replace(made.ranks[1], host="host-1")]
    made = replace(made, ranks=(*ranks, *made.ranks[2:]), case=replace(made.case, job=job))
    once = redact_diagnosis(made)
    assert len({rank.host for rank in once.ranks}) == 3
    assert f"| hosts | {once.ranks[0].host}, {once.ranks[1].host} |" in markdown.render(made)
    assert "alpha" not in markdown.render(made)
    assert once.findings[0].cause == f"{once.ranks[0].host} talks to {once.ranks[1].host}"


@pytest.mark.parametrize(
    "words",
    [
        "rank 3 on cuda:0, device='cuda:1', GPU:0, 'cpu:0'",
        "file.py:12, torch/csrc/socket.cpp:697, grpc_server_lib.cc:467",
        "all_reduce distributed_c10d.py:3252 at train.py:29500",
        "from torch.distributed.run:870, in lightning.trainer:1024",
        "[rank0]:[W1121 19:25:40 TCPStore.cpp:340] [default0]:2026-11-21 19:26:08",
        "/job:worker/replica:0/task:1/device:GPU:0",
        "{{node CollectiveReduceV2}}, node conv2d_1, at step:100",
        "https://pytorch.org/docs/stable/elastic/errors.html",
        "docker://nvcr.io#nvidia/pytorch:24.05-py3, git@github.com:a/b.git",
        "env:// rendezvous, file:///tmp/x, s3://bucket/key",
        "Address already in use, address: already taken, hostname: not found",
        "host memory, peer access, server closed, node 3, hosts: 4, nodes=2",
        "specify one via --master_addr or --host and --port",
        "host=args.host, master_addr=os.environ['MASTER_ADDR'], addr=0x7f12",
        "socket.gethostname(), host=socket.gethostname()",
        "blocks.0.1.se, layer1.0.fc, threading.local, torch.nn.functional.pad",
        "localhost:29500, [localhost]:29500, tcp://localhost:1, master_addr=localhost",
        "malloc@GLIBC_2.2.5, foo@plt, @torch.no_grad(), py-torch@2.1.0",
        "ranks 0-1-2-3, 24-05-01-12-30-59, v1_2_3_4",
        "ddp, fsdp, python, torchrun, train.py",
        "eth0, mlx5_0:1, ib0, nvme0n1",
    ],
)
def test_usual_words_stay(words: str) -> None:
    assert redact_words(words) == words


def test_usual_words_that_are_recorded_as_hosts_leave_others_alone() -> None:
    made = make_diagnosis(
        "--nproc-per-node 4 on node", command=("torchrun", "--nproc-per-node", "4")
    )
    made = replace(made, ranks=tuple(replace(rank, host="node") for rank in made.ranks))
    shown = redact_diagnosis(made)
    assert shown.findings[0].cause == f"--nproc-per-node 4 on {shown.ranks[0].host}"
    assert shown.case.job.command == ("torchrun", "--nproc-per-node", "4")
