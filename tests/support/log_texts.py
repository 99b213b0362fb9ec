"""Console texts with their known cause: whole logs, and the example of each signature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from tests.support.log_variants import CHANGES, CUTS

CONSOLE = Path(__file__).parents[1] / "recorded" / "console"
LOGS = Path(__file__).parents[1] / "recorded" / "logs"

CODES: Mapping[str, str] = {
    "backward-twice": "failed-reentrant-backward",
    "checkpoint-damaged": "failed-checkpoint",
    "checkpoint-size": "failed-checkpoint",
    "collective-mismatch": "hang-collective-mismatch",
    "disk-full": "failed-disk-full",
    "estimator-nan": "loss-nan",
    "lightning-elastic": "failed-world-size",
    "lightning-gpu": "gpu-missing",
    "lightning-nan": "loss-nan",
    "lightning-unused": "failed-unused-parameters",
    "loader-killed": "failed-dataloader-worker",
    "loader-nested-cause": "failed-open-files",
    "loader-sizes": "failed-shape-mismatch",
    "main-guard": "failed-main-guard",
    "mismatch-after-timeout": "failed-gloo",
    "nan-on-rank-1": "loss-nan",
    "nccl-last-error": "oom-device",
    "nccl-timeout-abort": "failed-nccl-timeout",
    "no-launcher": "failed-rendezvous",
    "nvrm-three-lines": "gpu-lost",
    "port-in-use": "failed-port-in-use",
    "rank-behind": "failed-gloo",
    "ray-worker-died": "failed-killed",
    "shape-on-rank-1": "failed-shape-mismatch",
    "spawn-lambda": "failed-spawn-pickling",
    "tensorflow-batchmap": "failed-tf-invalid-argument",
    "tensorflow-config-index": "failed-tf-config",
    "tensorflow-config-json": "failed-tf-config",
    "tensorflow-input": "failed-shape-mismatch",
    "tensorflow-labels": "failed-tf-invalid-argument",
    "tensorflow-leader-lost": "failed-tf-collective",
    "tensorflow-mirrored": "failed-tf-batch-indivisible",
    "tensorflow-nan": "loss-nan",
    "tensorflow-nangrad": "loss-nan",
    "tensorflow-oom": "failed-tf-resource-exhausted",
    "tensorflow-per-replica": "failed-tf-collective",
    "tensorflow-port": "failed-port-in-use",
    "tensorflow-session-waits": "failed-tf-worker-missing",
    "tensorflow-shape": "failed-tf-invalid-argument",
    "tensorflow-weights": "failed-checkpoint",
    "tensorflow-worker-lost": "failed-tf-worker-missing",
    "torchrun-report-cut": "failed-killed",
    "unused-parameters": "failed-unused-parameters",
}
"""The cause of each log of tests/recorded/console/failed. `COMPOSED` ones were not printed by real
jobs."""
COMPOSED = frozenset(
    {"estimator-nan", "loader-nested-cause", "mismatch-after-timeout", "nccl-last-error"}
    | {"nccl-timeout-abort", "nvrm-three-lines", "ray-worker-died", "tensorflow-session-waits"}
    | {"torchrun-report-cut"}
)
"""Written from the frameworks' texts with our own values, because they need GPUs, Ray or TF 1."""

Variant = tuple[str, str]
"""The name of a change, and the changed text."""
ORIGINAL = "original"


def variant_of(text: str, name: str, telling: int) -> str:
    """The text after the change of this name. `telling`: the index of the line at which it is
    cut."""
    if name == ORIGINAL:
        return text
    return CUTS[name](text, telling) if name in CUTS else CHANGES[name](text)


@dataclass(frozen=True)
class FaultyText:
    """A text, the code of its cause, and the index of the line that shows it."""

    name: str
    text: str
    code: str
    telling: int

    def variant(self, name: str) -> str:
        return variant_of(self.text, name, self.telling)

    def variants(self) -> Iterator[Variant]:
        yield from ((name, self.variant(name)) for name in (ORIGINAL, *CHANGES, *CUTS))


@dataclass(frozen=True)
class HealthyText:
    """A text for which nothing may be reported, however it is changed."""

    name: str
    text: str

    def variant(self, name: str) -> str:
        return variant_of(self.text, name, self.text.count("\n") // 2)

    def variants(self) -> Iterator[Variant]:
        yield from ((name, self.variant(name)) for name in (ORIGINAL, *CHANGES, *CUTS))


@cache
def recorded_failures() -> tuple[FaultyText, ...]:
    """The logs of jobs that failed; the telling line is the one that the doctor quotes."""
    paths = ((CONSOLE / "failed" / f"{name}.log", code) for name, code in CODES.items())
    return tuple(_recorded(path, code) for path, code in paths)


def _recorded(path: Path, code: str) -> FaultyText:
    signs = [
        sign
        for sign in load_logs([str(path)]).signs
        if any(
            signature.id == sign.signature and signature.code == code for signature in SIGNATURES
        )
    ]
    text = path.read_text(encoding="utf-8").rstrip("\n")
    telling = signs[0].number - 1 if signs else text.count("\n")
    return FaultyText(path.stem, text, code, telling)


def examples() -> list[FaultyText]:
    """The example of each signature, repeated as often as the signature needs (`least`)."""
    return [
        FaultyText(
            signature.id,
            "\n".join([signature.example] * signature.least),
            signature.code,
            signature.least - 1,
        )
        for signature in SIGNATURES
        if not signature.needs_failure
    ]


@cache
def healthy_texts() -> tuple[HealthyText, ...]:
    paths = [*sorted((CONSOLE / "healthy").glob("*.log")), *sorted(LOGS.glob("*.txt"))]
    return tuple(HealthyText(path.stem, path.read_text(encoding="utf-8")) for path in paths)


def findings_of(text: str, folder: Path) -> tuple[Finding, ...]:
    """The findings on a text."""
    path = folder / "train.log"
    path.write_text(f"{text}\n", encoding="utf-8")
    return diagnose(load_logs([str(path)])).findings


def first_code(text: str, folder: Path) -> str | None:
    findings = findings_of(text, folder)
    return findings[0].code if findings else None


def alarms(text: str, folder: Path) -> list[str]:
    """The codes of the findings of at least warning severity."""
    findings = findings_of(text, folder)
    return [finding.code for finding in findings if finding.severity is not Severity.INFO]
