import subprocess
import sys

import pytest
from mgpu_trainers import catalogue

DDP = catalogue.find("torch-ddp")


def test_finds_each_trainer_by_its_name() -> None:
    assert [catalogue.find(trainer.name) for trainer in catalogue.TRAINERS] == list(
        catalogue.TRAINERS
    )


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(catalogue.UsageError, match=r"no trainer 'torch-dpp'.*torch-ddp"):
        catalogue.find("torch-dpp")


def test_what_is_not_built_in_is_answered_with_the_reason() -> None:
    with pytest.raises(
        catalogue.UsageError, match=r"^Horovod is not built in: .*STANDARD to 17.*pip install"
    ):
        catalogue.find("horovod-torch")


def test_the_command_starts_the_module_under_torchrun_on_any_free_port() -> None:
    command = catalogue.command(DDP, 3, {"steps": 5, "model": "cnn-nano", "batch": None})
    assert command[0] == sys.executable
    assert command[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    assert command[6:] == [
        *("-m", "mgpu_trainers.pytorch.ddp"),
        *("--steps", "5", "--model", "cnn-nano"),
    ]


def test_what_a_trainer_needs_and_is_not_installed_is_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = catalogue.find("ray-torch")
    here = {"torch", "ray"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in here or None)
    assert catalogue.missing(ray) is None
    here.remove("ray")
    told = "needs Ray Train, which is not installed here; try `pip install 'ray[train]'`"
    assert catalogue.missing(ray) == told
    assert catalogue.missing(DDP) is None
    here.remove("torch")
    assert catalogue.missing(DDP) == catalogue.missing(ray)
    assert "'mgpu-doctor[torch]'" in str(catalogue.missing(DDP))


def test_an_option_may_be_spelled_as_python_spells_it_and_repeated() -> None:
    options = {"log_every": 2, "fault": ["kill:step=3", "leak:mb=1"]}
    assert catalogue.command(DDP, 2, options)[8:] == [
        *("--log-every", "2", "--fault", "kill:step=3", "--fault", "leak:mb=1")
    ]


@pytest.mark.parametrize(
    ("ranks", "options", "reason"),
    [
        (0, {}, "--ranks must be 1 or more, not 0"),
        (100_000, {}, "--ranks must be 64 or less, not 100000"),
        (2, {"stepz": 1}, "torch-ddp has no option --stepz. Did you mean --steps?"),
        (2, {"rank": 1}, "torch-ddp has no option --rank. Did you mean --ranks?"),
        (2, {"colour": 1}, "torch-ddp has no option --colour"),
        (2, {"timeout": "inf"}, "--timeout must be 1000000 or less, not inf"),
        (2, {"seed": 2**64}, "--seed must be 2147483647 or less"),
        (2, {"steps": 0}, "--steps must be 1 or more, not 0"),
        (2, {"steps": "many"}, "--steps takes a whole number, not 'many'"),
        (2, {"lr": "nan"}, "--lr must be 0 or more, not nan"),
        (2, {"workers": -1}, "--workers must be 0 or more, not -1"),
        (2, {"model": "gpt-5"}, "--model must be one of gpt-nano, cnn-nano, not gpt-5"),
        (2, {"fault": "kill:rank=2"}, "no rank 2 among 2"),
        (2, {"fault": "slow:rank=1"}, "position 1: slow takes either ms= or factor="),
    ],
)
def test_wrong_usage_is_one_clear_sentence(
    ranks: int, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(catalogue.UsageError) as refused:
        catalogue.command(DDP, ranks, options)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_trainer_reads_back_what_the_command_says() -> None:
    command = catalogue.command(DDP, 2, {"lr": 0.01, "fault": ["nan:step=2"], "workers": 1})
    read = catalogue.arguments(DDP, command[8:])
    assert (read.lr, read.fault, read.workers, read.steps) == (0.01, ["nan:step=2"], 1, 200)


def test_wrong_usage_of_the_trainer_itself_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        catalogue.arguments(DDP, ["--steps", "0"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "python -m mgpu_trainers.pytorch.ddp: --steps must be 1 or more, not 0"
    ]


def test_the_catalogue_imports_no_framework() -> None:
    script = (
        "import sys, mgpu_trainers.catalogue; print(sorted({'torch', 'numpy'} & {*sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ended.stdout == b"[]\n"
