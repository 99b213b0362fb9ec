"""Options of all trainers: which are rejected, alone and together, and what they imply."""

import os
import zipfile
from pathlib import Path

import pytest
from mgpu_trainers import catalogue, schedule
from mgpu_trainers.capabilities import UsageError
from mgpu_trainers.option_checks import CHECKPOINT_FILE, check_folder

ALONE = [trainer for trainer in catalogue.TRAINERS if trainer.launcher == "python"]
TOGETHER = [trainer for trainer in catalogue.TRAINERS if trainer.launcher == "torchrun"]


def command(name: str, ranks: int | None = None, **options: object) -> list[str]:
    return catalogue.command(catalogue.find(name), ranks, options)


def refused(name: str, ranks: int | None = None, **options: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        command(name, ranks, **options)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("trainer", ALONE, ids=lambda each: each.name)
def test_one_process_is_started_without_torchrun(trainer: catalogue.Trainer) -> None:
    assert command(trainer.name, steps=5)[1:] == ["-m", trainer.module, "--steps", "5"]
    assert command(trainer.name, 1) == command(trainer.name)
    error = refused(trainer.name, 2)
    assert error.option == "ranks"
    assert str(error).startswith(f"{trainer.name} is one process: --ranks can only be 1")


@pytest.mark.parametrize("trainer", TOGETHER, ids=lambda each: each.name)
def test_several_are_two_where_nothing_is_reported(trainer: catalogue.Trainer) -> None:
    assert command(trainer.name) == command(trainer.name, 2)
    assert command(trainer.name)[-1] == trainer.module


@pytest.mark.parametrize(
    ("name", "options", "wrong", "reason"),
    [
        ("torch-ddp", {"batch": 4, "global_batch": 8}, "global-batch", "either --batch or"),
        ("torch-ddp", {"global_batch": 9}, "global-batch", "9 cannot be divided into 2 equal"),
        ("torch-ddp", {"global_batch": 8, "accumulate": 3}, "global-batch", "6 equal batches"),
        (
            "torch-ddp",
            {"model": "cnn-nano", "batch": 751},
            "batch",
            "2 × 751 samples at once are more than the 1500 that cnn-nano is trained on",
        ),
        ("torch-tp", {"batch": 10**6}, "batch", "1000000 samples at once are more"),
        (
            "torch-ddp",
            {"model": "cnn-nano", "global_batch": 3004, "accumulate": 2},
            "global-batch",
            "2 × 751 samples at once are more",
        ),
        ("torch-ddp", {"save_every": 10}, "save-every", "--save-every needs a folder"),
        ("torch-ddp", {"bucket_mb": 0}, "bucket-mb", "--bucket-mb must be 0.1 or more, not 0"),
        ("torch-ddp", {"precision": "fp8"}, "precision", "must be one of fp32, bf16, fp16"),
        ("torch-ddp", {"sync_every": 4}, "sync_every", "torch-ddp has no option --sync_every"),
        ("torch-fsdp", {"compress": "fp16"}, "compress", "torch-fsdp has no option --compress"),
        ("torch-localsgd", {"sync_every": 1}, "sync-every", "must be 2 or more, not 1"),
        ("torch-localsgd", {"precision": "fp16"}, "precision", "on its own; take bf16"),
        ("torch-diloco", {"precision": "fp16"}, "precision", "on its own; take bf16"),
        ("torch-diloco", {"bucket_mb": 1}, "bucket_mb", "torch-diloco has no option --bucket_mb"),
        ("torch-ps", {"lr_scaling": "sqrt"}, "lr-scaling", "from one worker's batch at a time"),
        ("torch-ps", {"fault": "slow:rank=0,ms=5"}, "fault", "rank 0 of torch-ps is the server"),
        ("torch-ps", {"fault": "leak:rank=0"}, "fault", "name a worker, from rank=1 on"),
        ("torch-ps", {"fault": "slow:phase=optimizer,factor=2"}, "fault", "give ms="),
        ("torch-ddp", {"prefetch": 4}, "prefetch", "needs loader processes: --workers 1 or more"),
        ("torch-single", {"timeout": 5}, "timeout", "torch-single has no option --timeout"),
        ("torch-single", {"fault": "slow:ms=1"}, "fault", "there is no rank 1 among 1"),
        ("torch-mp", {"stages": 0}, "stages", "--stages must be 1 or more, not 0"),
        ("torch-tp", {"model": "cnn-nano"}, "model", "cnn-nano has none: take --model gpt-nano"),
        ("torch-tp", {"precision": "fp16"}, "precision", "skip different steps; take bf16"),
        (
            "torch-tp",
            {"global_batch": 3, "accumulate": 2},
            "global-batch",
            "2 equal batches (1 gro",
        ),
        ("torch-tp", {"fault": "uneven"}, "fault", "work on the same batch"),
        ("torch-tp", {"fault": "slow:factor=2"}, "fault", "this phase is not known"),
        ("torch-tp-fsdp", {"tp": 3}, "tp", "so --tp must divide them evenly: 3 does not"),
        ("torch-tp-fsdp", {"tp": 4}, "tp", "--tp 4 does not divide 2 ranks into equal groups"),
        ("torch-pp", {"batch": 6}, "micro-batches", "6 samples cannot be divided into 4 equal"),
        ("torch-pp", {"micro_batches": 1}, "micro-batches", "as there are ranks, or more: 1 are"),
        ("torch-pp", {"accumulate": 2}, "accumulate", "already goes through in --micro-batches"),
        ("torch-pp", {"precision": "bf16"}, "precision", "torch-pp computes in fp32 only"),
        ("torch-pp", {"schedule": "zbv", "checkpointing": "full"}, "checkpointing", "in two"),
        ("torch-pp", {"schedule": "zbv", "checkpointing": "selective"}, "checkpointing", "in two"),
        ("torch-pp", {"schedule": "zbv", "model": "cnn-nano"}, "ranks", "cnn-nano has 3 blocks"),
        ("torch-pp", {"fault": "uneven"}, "fault", "work on the same batch"),
        ("torch-pp", {"fault": "slow:phase=backward,factor=2"}, "fault", "give ms="),
        ("torch-fsdp", {"fault": "slow:factor=2"}, "fault", "give ms="),
        ("torch-fsdp", {"fault": "slow:phase=backward,factor=2"}, "fault", "give ms="),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_options_name(
    name: str, options: dict[str, object], wrong: str, reason: str
) -> None:
    error = refused(name, None, **options)
    assert reason in str(error)
    assert error.option == wrong


def test_what_goes_together_is_taken() -> None:
    assert command("torch-ddp", 2, global_batch=12, accumulate=3)
    assert command("torch-ddp", 2, save_every=10, save_to="somewhere")
    assert command("torch-fsdp", 2, workers=1, prefetch=4, pin="off", checkpointing="selective")
    assert command("torch-fsdp", 2, fault="slow:ms=5;slow:phase=optimizer,factor=2")


def test_the_ranks_of_torchrun_decide_what_a_rank_itself_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ddp = catalogue.find("torch-ddp")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert catalogue.arguments(ddp, ["--fault", "kill:rank=3"]).fault == ["kill:rank=3"]
    with pytest.raises(SystemExit) as ended:
        catalogue.arguments(ddp, ["--global-batch", "6"])
    assert ended.value.code == 2
    assert "4 equal batches (4 ranks × --accumulate 1)" in capsys.readouterr().err


def test_a_parameter_server_and_its_workers_are_started_by_ourselves() -> None:
    started = command("torch-ps", steps=5, fault="slow:rank=0,phase=optimizer,ms=5;kill:rank=0")
    assert started[1:7] == [
        *("-m", "mgpu_trainers.apart", "--ranks", "3"),
        *("mgpu_trainers.pytorch.ps", "--steps"),
    ]
    assert refused("torch-ps", 1).option == "ranks"
    assert command("torch-ps", 3, global_batch=8)


def test_only_ranks_that_divide_the_layers_evenly_are_taken() -> None:
    error = refused("torch-tp", 3)
    assert error.option == "ranks"
    assert "the 4 attention heads of gpt-nano" in str(error)
    assert command("torch-tp", 4)
    assert command("torch-tp-fsdp", 6, global_batch=9)


def test_a_pipeline_takes_what_its_stages_and_schedule_allow() -> None:
    assert refused("torch-pp", 1).option == "ranks"
    assert "5 stages on 5 ranks, and gpt-nano has 4 blocks" in str(refused("torch-pp", 5))
    uneven = refused("torch-pp", 2, schedule="interleaved", micro_batches=7, batch=14)
    assert "in 3 equal rounds on 2 ranks, and 7 cannot be divided so" in str(uneven)
    assert command("torch-pp", 2, schedule="interleaved")
    assert command("torch-pp", 4, schedule="gpipe", micro_batches=2)
    assert command("torch-pp", 3, model="cnn-nano", fault="slow:phase=forward,factor=2")


def test_groups_that_work_on_the_same_batch_share_the_data_as_one() -> None:
    assert catalogue.find("torch-ddp").count_shares(4, None) == 4
    assert catalogue.find("torch-tp").count_shares(4, None) == 1
    assert catalogue.find("torch-pp").count_shares(4, None) == 1
    assert catalogue.find("torch-ps").count_shares(4, None) == 3
    assert catalogue.find("torch-tp-fsdp").count_shares(6, 2) == 3


def test_a_global_batch_is_divided_among_ranks_and_turns() -> None:
    assert schedule.batch_size("cnn-nano", None, None, replicas=2, accumulate=2) == 32
    assert schedule.batch_size("cnn-nano", 8, None, replicas=2, accumulate=2) == 8
    assert schedule.batch_size("cnn-nano", None, 64, replicas=2, accumulate=4) == 8


@pytest.mark.parametrize(("scaling", "full"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_the_learning_rate_grows_with_the_batch_after_a_warm_up(scaling: str, full: float) -> None:
    rates = [schedule.learning_rate(0.1, scaling, 4, step, warmup=4) for step in range(1, 7)]
    assert rates == pytest.approx([full / 4, full / 2, full * 3 / 4, full, full, full])
    assert schedule.learning_rate(0.1, scaling, 4, 1, warmup=0) == pytest.approx(full)


def test_a_folder_that_is_there_or_can_be_made_is_taken(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "newer")
    with zipfile.ZipFile(tmp_path / CHECKPOINT_FILE, "w") as whole:
        whole.writestr("data.pkl", b"")
    check_folder(tmp_path)


def test_what_is_no_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refused("torch-ddp", save_to=str(tmp_path / "file" / "deeper"))
    assert str(error).endswith("/file is no folder")
    assert error.option == "save-to"


def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(UsageError, match="cannot be written to"):
        check_folder(tmp_path / "new")


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 and then the disk was full"])
def test_a_checkpoint_that_is_none_is_reported_with_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / CHECKPOINT_FILE).write_bytes(content)
    with pytest.raises(UsageError, match="move it away, or name another folder"):
        check_folder(tmp_path)


def test_a_checkpoint_with_all_the_steps_is_reported_as_such() -> None:
    assert schedule.describe_resumed(20, 60) == "resumed after step 20"
    assert (
        schedule.describe_resumed(100, 60)
        == "resumed after step 100, and --steps 60 asks for no more"
    )
