"""User names are hidden in homes, folders and logins; other folders stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.report import markdown
from mgpu_doctor.report.redaction.redact import redact_diagnosis
from mgpu_doctor.report.redaction.users import hide_homes, hide_logins
from tests.support.job_snapshots import case, snapshot_series
from tests.support.loops import over
from tests.support.redacted_reports import make_diagnosis, redact_words, render_page

HOMES = [
    "/home/{}",
    "/home1/{}",
    "/homes/{}",
    "/home/users/{}",
    "/home/staff/{}",
    "/home/a/{}",
    "/home/al/{}",
    "/home/CORP/{}",
    "/Users/{}",
    "/users/{}",
    "/u/{}",
    "/user/{}",
    "/data/home/{}",
    "/gpfs/home/{}",
    "/mnt/home/{}",
    "/var/home/{}",
    "/export/home/{}",
    "/cluster/home/{}",
    "/nfs/homes/{}",
    "/nfs/users/{}",
    "/lustre/users/{}",
    "/global/homes/a/{}",
    "/p/home/jusers/{}",
    "/afs/cern.ch/user/a/{}",
    "/mnt/c/Users/{}",
    "~{}",
]
WORKSPACES = [
    "/scratch/{}",
    "/scratch1/{}",
    "/scratch/users/{}",
    "/pscratch/sd/a/{}",
    "/lustre/scratch/{}",
    "/lustre/orion/scratch/{}",
    "/" + "work/{}",
    "hdfs://namenode.corp:9000/scratch/{}",
    "data/home/{}",
    "C:\\Users\\{}",
    "file:///home/{}",
    "-I/home/{}",
    "-L/scratch/{}",
]
PLACES = [
    "{}/run/x.py:12",
    "'{}/run'",
    "PYTHONPATH={}/a:/opt/b",
    'File "{}/x.py", line 3',
    "({}/a)",
]


@over("place", PLACES)
@over("home", HOMES)
def test_a_home_is_hidden(home: str, place: str) -> None:
    words = place.format(home.format("alice"))
    assert "alice" not in render_page(make_diagnosis(words))
    assert redact_words(words).startswith(place.partition("{}")[0] + "~/")


@pytest.mark.parametrize("folder", [*HOMES, *WORKSPACES])
def test_a_user_is_hidden_elsewhere_too(folder: str) -> None:
    path = folder.format("alice7")
    words = f"{path}/x, /data/projects/alice7/y, alice7@bigbox and /opt/alice7"
    assert "alice7" not in render_page(make_diagnosis(words))
    command = ("python", f"{path}/train.py", "--out=/data/projects/alice7/y")
    assert "alice7" not in render_page(make_diagnosis("/opt/alice7/z is full", command=command))


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        ("/lustre/scratch/alice/x", "/lustre/scratch/user/x"),
        ("/scratch/users/alice/x", "/scratch/users/user/x"),
        ("data/home/alice/x", "data/home/user/x"),
        ("file:///home/alice/x", "file:///home/user/x"),
        ("-I/home/alice/include", "-I~/include"),
        ("/root/x and /rooted/y", "~/x and /rooted/y"),
        ("/home/alice-b/x, /data/alice/y", "~/x, /data/alice/y"),
        ("USER=alice LOGNAME=alice ls", "USER=user LOGNAME=user ls"),
        ("USER=bo", "USER=user"),
        ("SLURM_JOB_USER=alice, SUDO_USER='alice'", "SLURM_JOB_USER=user, SUDO_USER='user'"),
        ('{"USER": "alice"}', '{"USER": "user"}'),
        ("user=alice, owner='alice'", "user=user, owner='user'"),
        ("--user alice --username=alice", "--user user --username=user"),
        ("uid=1000(alice) gid=1000(alice)", "uid=1000(user) gid=1000(user)"),
        ("jane.doe@example.org", "user@host-2"),
        ("git+ssh://jane:secret@repo.corp/x", "git+ssh://user@host-2/x"),
        ("jane.doe@github.com", "user@github.com"),
        ("root@10.0.0.1 and alice@10.0.0.1", "root@address and user@address"),
        ("wandb: alice/bert of /home/alice", "wandb: user/bert of ~"),
        ("exp_alice_3 in /home/alice/x", "exp_user_3 in ~/x"),
        ("al@bigbox and /x/al/y but al", "user@host-2 and /x/user/y but al"),
        ("bob of /home/bob/x; bob.py", "user of ~/x; bob.py"),
        ("what else runs there: /data/home/runs/x", "what else runs there: ~/x"),
    ],
)
def test_what_is_left(words: str, hidden: str) -> None:
    assert redact_words(words) == hidden


@pytest.mark.parametrize(
    "words",
    [
        "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:187",
        "/usr/share/x, /tmp/run-3, /var/lib/docker, /dev/shm/nccl-7CdbZ1",
        "/workspace/train.py, /data/imagenet, /mnt/nvme0",
        "/scratch/data, /scratch/datasets/x",
        "and/or, GiB/s, train/loss, client/server, either/u/or",
        "in user code, user: error, by user request, the user's own",
        "user=None, user=self.user, user=getpass.getuser()",
        "~10 s, about ~half of it, ~/x",
        "a@b, x@w, query @ key, @dataclass",
        "home directory, homes/, /home",
        "root of the tree, ubuntu 22.04",
    ],
)
def test_usual_words_stay(words: str) -> None:
    assert redact_words(words) == words


def test_owners_of_processes_are_users() -> None:
    made = make_diagnosis("killed by margaret, see /data/margaret")
    seen = case(snapshot_series({}).snapshots())
    looks = tuple(
        replace(
            look, processes=tuple(replace(process, user="margaret") for process in look.processes)
        )
        for look in seen.job_snapshots
    )
    shown = redact_diagnosis(replace(made, case=replace(made.case, job_snapshots=looks)))
    assert shown.findings[0].cause == "killed by user, see /data/user"


def test_the_home_of_who_reports_need_not_look_like_one() -> None:
    made = make_diagnosis("/data/ml/margaret/run/x.py and /data/ml/margaret2, told margaret")
    assert "margaret" in markdown.render(made)
    shown = markdown.render(made, home="/data/ml/margaret")
    assert "~/run/x.py and /data/ml/margaret2, told user" in shown.replace("\\", "")
    for nothing in ("/", "", None, "~"):
        assert "/data/ml" in markdown.render(made, home=nothing)


@given(st.text(alphabet="abu/\\~@ .:-='", max_size=60))
def test_twice_is_once(words: str) -> None:
    once = hide_logins(hide_homes(words))
    assert hide_logins(hide_homes(once)) == once
