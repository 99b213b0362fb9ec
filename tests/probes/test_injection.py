"""Injection into real Python processes: the user's own start-up runs as without a probe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"

Outcome = tuple[int, str, str]


def run(
    *arguments: str, path: list[Path], boxes: Path | None, python: str = sys.executable, **more: str
) -> Outcome:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RANK"))}
    environment.update(more, PYTHONPATH=os.pathsep.join(map(str, path)))
    if boxes is not None:
        environment["MGPU_DOCTOR_BOXES"] = str(boxes)
    done = subprocess.run(
        [python, *arguments],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def both(*arguments: str, own: Path, boxes: Path, **more: str) -> tuple[Outcome, Outcome]:
    bare = run(*arguments, path=[own], boxes=None, **more)
    return bare, run(*arguments, path=[INJECT, own], boxes=boxes, **more)


SAYS_WHAT_IT_SEES = """
import sys
print(sys.path)
print([name for name in sys.modules if "sitecustomize" in name])
print(getattr(sys.modules.get("sitecustomize"), "__file__", None))
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "customize",
    [
        None,
        "print('mine', __name__, __file__)",
        "raise RuntimeError('broken [bold]')",
        "import no_such_module_anywhere",
        "def broken(:",
    ],
)
def test_the_users_own_sitecustomize_runs_as_in_a_bare_python(
    customize: str | None, own: Path, tmp_path: Path
) -> None:
    if customize is not None:
        (own / "sitecustomize.py").write_text(customize)
    bare, watched = both("-c", SAYS_WHAT_IT_SEES, own=own, boxes=tmp_path / "boxes")
    assert watched == bare


@pytest.mark.parametrize("flag", ["-S", "-E", "-I", "-s", "-O", "-B"])
def test_interpreter_flags(flag: str, own: Path, tmp_path: Path) -> None:
    (own / "sitecustomize.py").write_text("print('mine')")
    code = "import sys; print(sys.flags, 'sitecustomize' in sys.modules)"
    bare, watched = both(flag, "-c", code, own=own, boxes=tmp_path / "boxes")
    assert watched == bare


def test_nothing_of_the_doctor_can_be_imported_in_another_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = str(tmp_path / "env" / "bin" / "python")
    code = (
        "import importlib.util as u, sys\n"
        "names = ('mgpu_probes', 'mgpu_doctor', 'bootstrap', 'layout', 'inprocess', 'probes')\n"
        "print([n for n in names if u.find_spec(n)], '_mgpu_probe' in sys.modules)"
    )
    outcome = run("-c", code, path=[INJECT], boxes=tmp_path / "boxes", python=python)
    assert outcome == (0, "[] True\n", "")


def test_a_process_that_does_not_train_stays_as_it_is(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "heavy = {'torch', 'typing', 'dataclasses', 'mmap', 'struct', '_mgpu_probe.blackbox'}\n"
        "print(heavy & set(sys.modules), sys.excepthook is sys.__excepthook__)"
    )
    own = tmp_path / "own"
    own.mkdir()
    bare, watched = both("-c", code, own=own, boxes=tmp_path / "boxes")
    assert watched == bare
    assert not (tmp_path / "boxes").exists()


def test_a_probe_that_cannot_start_leaves_the_job_alone(own: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(INJECT.parent, tmp_path / "mgpu_probes") / INJECT.name
    (broken.parent / "inprocess" / "probe_start.py").write_text("raise RuntimeError('broken')")
    (own / "torch").mkdir()
    (own / "torch" / "__init__.py").write_text("")
    (own / "torch" / "autograd.py").write_text("")
    script = "import torch.autograd, torch; print('trained')"
    code, out, err = run("-c", script, path=[broken, own], boxes=tmp_path)
    assert (code, out) == (0, "trained\n")
    assert err.count("mgpu-doctor: this process is not watched: RuntimeError: broken") == 1


def test_without_a_folder_for_boxes_nothing_is_loaded(tmp_path: Path) -> None:
    code = "import sys; print('_mgpu_probe' in sys.modules)"
    assert run("-c", code, path=[INJECT], boxes=None) == (0, "False\n", "")
    assert run("-c", code, path=[INJECT], boxes=tmp_path) == (0, "True\n", "")


def test_a_child_python_is_watched_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = 'import sys; print(chr(95) + \"mgpu_probe\" in sys.modules)'\n"
        "subprocess.run([sys.executable, '-c', child])"
    )
    assert run("-c", code, path=[INJECT], boxes=tmp_path)[1] == "True\n"


def test_a_rank_that_dies_before_torch_leaves_its_exception(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def load():\n    raise ValueError('no such data')\n\nload()\n")
    own = tmp_path / "own"
    own.mkdir()
    boxes = tmp_path / "boxes"
    bare, watched = both(str(script), own=own, boxes=boxes, RANK="3", WORLD_SIZE="8")
    assert watched == bare
    assert bare[0] == 1
    from mgpu_doctor.recording.box import read_box

    (path,) = boxes.glob("*.box")
    box = read_box(path)
    assert box.identity is not None
    assert (box.identity.rank, box.identity.world_size) == (3, 8)
    assert box.state == "exception"
    assert box.exit_code == 1
    words = box.last_words
    assert words["type"] == "ValueError"
    assert words["message"] == "no such data"
    assert (words["file"], words["line"], words["function"]) == (str(script), 2, "load")


def test_the_child_of_a_rank_is_no_rank(tmp_path: Path) -> None:
    child = "raise ValueError"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    boxes = tmp_path / "boxes"
    assert run("-c", code, path=[INJECT], boxes=boxes, RANK="0")[0] == 0
    assert not list(boxes.glob("*.box")) if boxes.exists() else True


def test_zip_imports_and_empty_entries_survive(tmp_path: Path) -> None:
    import zipfile

    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as lib:
        lib.writestr("zipped.py", "value = 7")
    code = "import sys, zipped; print(zipped.value, sys.path)"
    bare = run("-c", code, path=[archive], boxes=None)
    assert run("-c", code, path=[INJECT, archive], boxes=tmp_path / "boxes") == bare
    assert bare[0] == 0


def test_usage_of_the_module_as_a_command(tmp_path: Path) -> None:
    outcome = run("-m", "mgpu_probes", path=[], boxes=None)
    assert outcome[0] == 2
    assert outcome[2].startswith("usage:")
    script = tmp_path / "hello.py"
    script.write_text("import sys; print(sys.argv, sys.path[0], '_mgpu_probe' in sys.modules)")
    outcome = run("-m", "mgpu_probes", str(script), "--x", path=[], boxes=tmp_path)
    assert outcome == (0, f"{[str(script), '--x']} {tmp_path} True\n", "")
