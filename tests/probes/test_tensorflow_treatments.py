"""Treatments of TensorFlow and Keras on a real script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.recording.box import read_box

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"
SCRIPT = """
import json
import tensorflow as tf
keras = tf.keras

keras.utils.set_random_seed(0)
data = tf.data.Dataset.range(512)
data = data.map(lambda x: (tf.ones((8,)) * tf.cast(x, "float32") / 512, x % 2))
data = data.batch(8)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2)])
model.compile(optimizer=keras.optimizers.SGD(0.01),
              loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, verbose=0)
print(json.dumps({
    "jit": model.jit_compile,
    "computes": model.layers[0].compute_dtype,
    "maps": type(data._input_dataset).__name__,
    "weights": [round(float(w), 4) for array in model.get_weights() for w in array.ravel()],
}))
"""


def train(folder: Path, treatments: dict[str, Any]) -> tuple[Any, Any]:
    """What the script printed, and its box."""
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={
            "PYTHONPATH": str(INJECT),
            "MGPU_DOCTOR_BOXES": str(folder / "boxes"),
            "MGPU_DOCTOR_TREATMENTS": json.dumps(treatments),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (box,) = (read_box(path) for path in (folder / "boxes").glob("*.box"))
    return json.loads(ended.stdout), box


def test_each_treatment_changes_its_setting_alone(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", {})
    weights = untreated.pop("weights")
    assert untreated == {"jit": False, "computes": "float32", "maps": "_MapDataset"}
    everything = {
        "tf-prefetch": True,
        "tf-parallel-map": 2,
        "keras-jit": True,
        "keras-mixed-bf16": True,
        "gc-freeze": True,
    }
    treated, box = train(tmp_path / "treated", everything)
    assert treated.pop("weights") == pytest.approx(weights, abs=1e-2)
    assert treated == {
        "jit": True,
        "computes": "bfloat16",
        "maps": "_ParallelMapDataset",
    }
    changes = {each["name"]: each for each in box.birth["treatments"]}
    assert changes.keys() == everything.keys()
    assert all(each["changed"] for each in changes.values())
    line = SCRIPT.splitlines().index("model.compile(optimizer=keras.optimizers.SGD(0.01),") + 1
    assert changes["keras-jit"]["sites"] == [f"{tmp_path}/treated/script.py:{line}"]
