"""The packages that people install: a wheel, and an sdist from which a wheel can be built."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = (ROOT, ROOT / "probes", ROOT / "trainers")
PACKAGES = ("mgpu_doctor", "mgpu_probes", "mgpu_trainers")
LEFT_OUT = ("__pycache__", ".mypy_cache", ".ruff_cache")
BUILD = "import sys, hatchling.build as build; build.build_sdist(sys.argv[1])"

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


def pip(*words: str | Path) -> None:
    command = (sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check")
    subprocess.run(command, check=True, cwd="/")


def test_what_is_installed_from_an_sdist_is_complete_and_works(tmp_path: Path) -> None:
    pip("install", "--target", tmp_path / "backend", "hatchling>=1.25")
    backend = {**os.environ, "PYTHONPATH": str(tmp_path / "backend")}
    subprocess.run([sys.executable, "-c", BUILD, tmp_path], cwd=ROOT, env=backend, check=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    pip("wheel", "--no-deps", "--wheel-dir", tmp_path, sdist)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if name.partition("/")[0] in PACKAGES}
    assert packed == {
        str(path.relative_to(source))
        for source in SOURCES
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file() and not set(path.parts) & set(LEFT_OUT)
    }

    pip("install", "--no-deps", "--target", tmp_path / "site", wheel)
    installed = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = tmp_path / "site" / "bin" / "mgpu-doctor"
    for words, printed in (
        (("--version",), "mgpu-doctor"),
        (("train", "--list"), "torch-ddp"),
        (("explain", "straggler-input"), "straggler-input"),
    ):
        done = subprocess.run(
            [sys.executable, command, *words],
            cwd=tmp_path,
            env=installed,
            capture_output=True,
            text=True,
            check=True,
        )
        assert printed in done.stdout
    where = [sys.executable, "-c", "import mgpu_doctor; print(mgpu_doctor.__file__)"]
    found = subprocess.check_output(where, cwd=tmp_path, env=installed, text=True)
    assert Path(found.strip()).is_relative_to(tmp_path)
