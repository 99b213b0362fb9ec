"""Commands in few words: the script, and what tells it from other runs."""

from __future__ import annotations

import pytest

from mgpu_doctor.report.command_names import find_script, name_job, shorten_commands
from tests.support import diagnoses

TORCHRUN = ["/opt/bin/python", "-m", "torch.distributed.run", "--nproc-per-node", "4"]


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "-u", "a/train.py", "--lr", "1"], ("train.py", "--lr", "1")),
        ([*TORCHRUN, "a/train.py", "x"], ("train.py", "x")),
        ([*TORCHRUN, "-m", "pkg.train", "x.py"], ("pkg.train", "x.py")),
        (["accelerate", "launch", "--config_file", "c.yaml", "train.py"], ("train.py",)),
        (["/usr/bin/srun", "-n", "4", "./job.sh"], ("srun", "-n", "4", "./job.sh")),
        (["python", "-m"], ("python", "-m")),
        ([], ()),
    ],
)
def test_the_script_without_interpreter_and_launcher(
    command: list[str], script: tuple[str, ...]
) -> None:
    assert find_script(command) == script


def test_arguments_that_all_share_give_way_where_room_is_short() -> None:
    shared = ["train.py", "--data", "/a/very/long/folder/of/data", "--lr"]
    commands = [["python", *shared, "0.1"], ["python", *shared, "0.2"], ["python", "other.py"]]
    assert shorten_commands(commands, 24) == [
        "train.py … --lr 0.1",
        "train.py … --lr 0.2",
        "other.py",
    ]
    whole = " ".join([*shared, "0.1"])
    assert shorten_commands(commands, 80)[0] == whole
    assert all(len(name) <= 12 for name in shorten_commands(commands, 12))


def test_a_job_is_named_by_its_script_and_its_id() -> None:
    case = diagnoses.healthy().case
    assert name_job(case, 80) == "train.py (recording 20260917-101500-4711)"
    assert name_job(case, 20) == "recording 20260917-101500-4711"
