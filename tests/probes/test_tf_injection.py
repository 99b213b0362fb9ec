"""A fake TensorFlow, imported by a watched Python: what is wrapped, and what is not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBES = Path(__file__).parents[2] / "probes" / "mgpu_probes"
MODULES = {
    "tensorflow/__init__.py": "def executing_eagerly():\n    return True\n",
    "tensorflow/python/__init__.py": "",
    "tensorflow/python/eager/__init__.py": "",
    "tensorflow/python/eager/backprop.py": (
        "class GradientTape:\n"
        "    def gradient(self, target, sources):\n"
        "        raise ValueError('of the tape')\n"
    ),
    "tensorflow/python/data/__init__.py": "",
    "tensorflow/python/data/ops/__init__.py": "",
    "tensorflow/python/data/ops/iterator_ops.py": "class OwnedIterator:\n    pass\n",
    "tensorflow/python/framework/__init__.py": "",
    "tensorflow/python/framework/auto_control_deps.py": (
        "class AutomaticControlDependencies:\n    def __exit__(self, *_):\n        return None\n"
    ),
    "tf_keras/__init__.py": "",
    "tf_keras/src/__init__.py": "",
    "tf_keras/src/optimizers/__init__.py": "",
    "tf_keras/src/optimizers/optimizer.py": (
        "class Optimizer:\n    def apply_gradients(self, pairs):\n        return None\n"
    ),
    "tf_keras/src/optimizers/utils.py": "def _all_reduce_sum_fn(strategy, pairs):\n    return []\n",
}
"""What older or newer versions may lack is missing here, too."""


def run(folder: Path, code: str) -> str:
    for name, text in MODULES.items():
        (folder / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "own" / name).write_text(text)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RANK"))}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(PROBES / "inject"), str(folder / "own")]),
        "MGPU_DOCTOR_BOXES": str(folder / "boxes"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout


def test_the_tape_is_wrapped_and_its_exception_passes(tmp_path: Path) -> None:
    code = (
        "import sys, tensorflow, traceback\n"
        "from tensorflow.python.eager.backprop import GradientTape\n"
        "print(hasattr(GradientTape.gradient, '__mgpu_probe__'))\n"
        "try:\n"
        "    GradientTape().gradient(1, 2)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "print({'torch', 'numpy'} & set(sys.modules))\n"
    )
    assert run(tmp_path, code).splitlines() == ["True", "of the tape", "set()"]


def test_autograph_does_not_convert_what_is_wrapped(tmp_path: Path) -> None:
    """It would fail to, and warn: TensorFlow before 2.21 converts functions of Keras 2."""
    code = (
        "import tensorflow\n"
        "from tf_keras.src.optimizers import optimizer, utils\n"
        "for function in (optimizer.Optimizer.apply_gradients, utils._all_reduce_sum_fn):\n"
        "    print(hasattr(function, '__mgpu_probe__'), hasattr(function, 'autograph_info__'))\n"
    )
    assert run(tmp_path, code).splitlines() == ["True True"] * 2


def test_modules_without_what_is_private_are_left_as_they_are(tmp_path: Path) -> None:
    code = (
        "import tensorflow\n"
        "from tensorflow.python.data.ops.iterator_ops import OwnedIterator\n"
        "from tensorflow.python.framework import auto_control_deps as deps\n"
        "from _mgpu_probe.frameworks.tensorflow import graph_stamps\n"
        "print([name for name in vars(OwnedIterator) if 'next' in name])\n"
        "print(hasattr(deps.AutomaticControlDependencies.__exit__, '__mgpu_probe__'))\n"
        "print(graph_stamps.tracing.off)\n"
    )
    off = "this TensorFlow cannot run operations independently of each other"
    assert run(tmp_path, code).splitlines() == ["[]", "False", off]


@pytest.mark.parametrize(
    "path",
    sorted((PROBES / "inprocess/frameworks/tensorflow").glob("*.py")),
    ids=lambda path: path.name,
)
def test_no_hook_imports_tensorflow_itself(path: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert imported <= set(sys.stdlib_module_names)
