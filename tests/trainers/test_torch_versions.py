"""What an older torch lacks is refused in one sentence, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from mgpu_trainers import catalogue, torch_versions
from mgpu_trainers.torch_versions import TorchPart


def refusal(name: str, version: str, **options: object) -> str | None:
    """What `missing` says with this torch on a machine of CPUs."""
    trainer = catalogue.find(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_versions, "installed_version", lambda: version)
        patch.setattr(torch_versions, "trains_on_cpus", lambda device: device != "cuda")
        return catalogue.missing(trainer, options)


def test_each_part_is_needed_up_to_the_version_that_has_it() -> None:
    for part in TorchPart:
        _, (major, minor), on_cpus = part.value
        lacks = [
            torch_versions.find_lack((part,), {}, version=version, on_cpus=True) is not None
            for version in (f"{major}.{minor - 1}.1+cu121", f"{major}.{minor}.0a0+git12ab", "3.0.0")
        ]
        assert lacks == [True, False, False], part
        on_gpus = torch_versions.find_lack((part,), {}, version="2.0.1", on_cpus=False)
        assert (on_gpus is None) == on_cpus, part


def test_a_trainer_and_an_option_name_what_they_need_and_what_is_there() -> None:
    lack = refusal("torch-fsdp", "2.4.1", device="cuda")
    assert lack is not None
    assert "torch 2.6 or newer" in lack
    assert "fully_shard" in lack
    assert "torch 2.4.1 is installed" in lack
    assert refusal("torch-ddp", "2.4.1") is None
    selective = refusal("torch-ddp", "2.4.1", checkpointing=["full", "selective"])
    assert selective is not None
    assert "CheckpointPolicy" in selective
    assert refusal("torch-ddp", "2.4.1", checkpointing=["selective", "full"]) is None


def test_what_gloo_lacks_concerns_cpus_alone() -> None:
    for version in ("2.4.1", "2.6.0"):  # at once what is enough
        assert "torch 2.8 or newer on CPUs" in (refusal("torch-fsdp", version) or "")
    assert refusal("torch-fsdp", "2.6.0", device="cuda") is None
    assert refusal("torch-pp", "2.11.0", schedule="interleaved") is None
    assert "torch 2.12 or newer on CPUs" in (refusal("torch-pp", "2.11.0", schedule="zbv") or "")
    assert refusal("torch-pp", "2.11.0", schedule="zbv", device="cuda") is None
    assert refusal("torch-pp", "2.12.0", schedule="zbv") is None


def test_an_unknown_version_is_not_refused() -> None:
    assert refusal("torch-fsdp", "unknown") is None


def test_the_drivers_files_show_where_auto_trains(tmp_path: Path) -> None:
    assert torch_versions.trains_on_cpus("auto", tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert torch_versions.trains_on_cpus("auto", tmp_path)
    (tmp_path / "nvidia0").touch()
    assert not torch_versions.trains_on_cpus("auto", tmp_path)
    assert torch_versions.trains_on_cpus("cpu", tmp_path)
    assert not torch_versions.trains_on_cpus("cuda", tmp_path / "none")


def test_a_trainer_that_is_started_by_hand_refuses_as_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_versions, "installed_version", lambda: "2.5.1")
    with pytest.raises(SystemExit) as ended:
        catalogue.arguments(catalogue.find("torch-fsdp"), ["--steps", "5"], ranks=2)
    assert ended.value.code == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "torch-fsdp needs torch 2." in sentence
