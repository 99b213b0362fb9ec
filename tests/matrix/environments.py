"""Fresh environments of other versions of Python, PyTorch and TensorFlow, as users install them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
LONGEST_INSTALL = 3000.0
"""Seconds: builds for CUDA are several GB."""


class Framework(Enum):
    """What an environment is for."""

    TORCH = "torch"
    TENSORFLOW = "tensorflow"


LEAST_SPACE = {Framework.TORCH: 12e9, Framework.TENSORFLOW: 4e9}
"""Bytes that must be free on the disk: an environment has half, and pip unpacks beside it."""
_INSTALL = (
    *("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"),
    *("install", "--no-cache-dir", "--no-compile"),  # Python compiles what is imported
)
UNCAPPED = {"PIP_CONSTRAINT": os.devnull}
"""A machine may cap versions for its own use: not the ones that are asked for here."""
NOT_INHERITED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Variables that no process of an environment gets. Without bytecode every process would compile
all of torch or TensorFlow again."""
PACKAGES = ("torch", "tensorflow", "tensorflow-cpu", "keras", "tf-keras", "numpy")
_VERSIONS = """
import json, platform, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
try:
    import torch
    found["build"] = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
except ImportError:
    pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Environment:
    """`python`: major and minor version. `variables`: of all its processes."""

    name: str
    framework: Framework
    python: str
    requirements: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def _torch(version: str, python: str, name: str = "") -> Environment:
    requirements = (f"torch=={version}.*", "ray[train]")
    return Environment(f"torch-{name or version}", Framework.TORCH, python, requirements)


def _tensorflow(version: str, python: str, keras: int) -> Environment:
    requirements = [f"tensorflow-cpu=={version}.*"]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    if keras == 2:
        requirements.append(f"tf-keras=={version}.*")
        variables["TF_USE_LEGACY_KERAS"] = "1"
    name = f"tensorflow-{version}-keras-{keras}"
    return Environment(name, Framework.TENSORFLOW, python, tuple(requirements), variables)


ENVIRONMENTS = (
    _torch("2.4", "3.10"),
    _torch("2.6", "3.13"),
    _torch("2.8", "3.12"),
    _torch("2.10", "3.13"),
    _torch("2.12", "3.11"),
    _torch("2.13", "3.11"),
    _torch("2.15", "3.12"),
    _torch("2.15", "3.14", "2.15-python-3.14"),
    _tensorflow("2.16", "3.10", 2),
    _tensorflow("2.16", "3.12", 3),
    _tensorflow("2.18", "3.11", 2),
    _tensorflow("2.18", "3.12", 3),
    _tensorflow("2.21", "3.11", 2),
    _tensorflow("2.21", "3.13", 3),
)
"""The Pythons are spread over them."""


class NotTriedError(Exception):
    """The environment cannot be made here; the message is the reason."""


@dataclass(frozen=True)
class Built:
    """An environment on disk. `seconds`: what installing took, None if it was kept from an earlier
    run; `size`: its bytes."""

    python: Path
    versions: Mapping[str, str]
    seconds: float | None
    size: int

    @property
    def summary(self) -> str:
        """Its size, what installing took, and the versions."""
        seconds, size = self.seconds, f"{self.size / 1e9:.1f} GB"
        took = "kept" if seconds is None else f"{size} in {seconds:.0f} s"
        return (
            f"{took}: {', '.join(f'{name} {version}' for name, version in self.versions.items())}"
        )


def build(environment: Environment, folder: Path, longest: float = LONGEST_INSTALL) -> Built:
    """Makes the environment, or installs the repository anew in one that was kept. `longest`:
    seconds of the installation. Raises NotTriedError."""
    python = folder / "bin" / "python"
    began = None if python.exists() else time.monotonic()
    if began is None:
        _run([python, *_INSTALL, "--no-deps", "--force-reinstall", ROOT])
    else:
        interpreter = find_interpreter(environment.python)
        if interpreter is None:
            raise NotTriedError(f"no Python {environment.python} on the machine")
        free, needed = shutil.disk_usage(folder.parent).free, LEAST_SPACE[environment.framework]
        if free < needed:
            raise NotTriedError(f"{free / 1e9:.1f} GB of disk are free, {needed / 1e9:.0f} needed")
        _run([interpreter, "-m", "venv", folder])
        # One call: what pip resolves together is what users get.
        _run([python, *_INSTALL, *environment.requirements, ROOT], UNCAPPED, longest)
    return _describe(python, folder, began, PACKAGES)


def build_on_top(
    requirements: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    packages: Sequence[str],
) -> Built:
    """Makes an environment that sees the packages of this one, the repository among them, and has
    others of its own; nothing is done to one that was kept. `packages`: whose versions are read.
    Raises NotTriedError."""
    python = folder / "bin" / "python"
    began = None if python.exists() else time.monotonic()
    if began is not None:
        _run([sys.executable, "-m", "venv", folder])
        (own,) = folder.glob("lib/python*/site-packages")
        seen = [ROOT, ROOT / "probes", ROOT / "trainers", *_find_site_packages()]
        (own / "seen.pth").write_text("".join(f"{each}\n" for each in seen), encoding="utf-8")
        _run([python, *_INSTALL, *requirements], variables)
    return _describe(python, folder, began, packages)


def read_versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Versions of those that are installed, of Python, and for what torch is built."""
    versions: dict[str, str] = json.loads(_run([python, "-c", _VERSIONS, *packages]))
    return versions


def _describe(python: Path, folder: Path, began: float | None, packages: Sequence[str]) -> Built:
    seconds = None if began is None else round(time.monotonic() - began, 1)
    return Built(python, read_versions(python, packages), seconds, _size_of(folder))


def _find_site_packages() -> list[Path]:
    """The folders of packages that this Python has, its own first."""
    return [Path(folder) for folder in sys.path if folder.endswith("-packages")]


def _run(
    command: Sequence[str | Path],
    variables: Mapping[str, str] | None = None,
    longest: float = LONGEST_INSTALL,
) -> str:
    """Standard output. Raises NotTriedError with the last line of standard error. The command has a
    temporary folder of its own: a pip that is killed leaves there what it has unpacked."""
    kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    with TemporaryDirectory(prefix="matrix-", ignore_cleanup_errors=True) as folder:
        try:
            ended = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=longest,
                env={**kept, **(variables or {}), "TMPDIR": folder},
            )
        except subprocess.TimeoutExpired:
            raise NotTriedError(f"installing took longer than {longest:.0f} s") from None
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        raise NotTriedError((errors or lines or ["pip failed"])[-1][:300])
    return ended.stdout


def find_interpreter(version: str) -> Path | None:
    """A Python of this major and minor version that starts; None: there is none."""
    for candidate in _candidates(version):
        asked = [str(candidate), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            ended = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if ended.returncode == 0 and ended.stdout.strip() == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[Path]:
    """On the path, and of pyenv, whose names on the path fail for versions that are not chosen."""
    for folder in os.get_exec_path():
        found = shutil.which(f"python{version}", path=folder)
        if found is not None:
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))


def _size_of(folder: Path) -> int:
    """Bytes of its files."""
    return sum(
        (Path(parent) / name).lstat().st_size
        for parent, _, names in os.walk(folder)
        for name in names
    )
