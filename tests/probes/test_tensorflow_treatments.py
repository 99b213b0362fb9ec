"""Treatments of TensorFlow and Keras on a real script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.treated_script import changes, train

pytestmark = pytest.mark.slow  # it starts processes that load a framework

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


def test_each_treatment_changes_its_setting_alone(tmp_path: Path) -> None:
    untreated, _ = train(tmp_path / "untreated", SCRIPT, {}, ranks=1)
    weights = untreated.pop("weights")
    assert untreated == {"jit": False, "computes": "float32", "maps": "_MapDataset"}
    everything = {
        "tf-prefetch": True,
        "tf-parallel-map": 2,
        "keras-jit": True,
        "keras-mixed-bf16": True,
        "gc-freeze": True,
    }
    treated, box = train(tmp_path / "treated", SCRIPT, everything, ranks=1)
    assert treated.pop("weights") == pytest.approx(weights, abs=1e-2)
    assert treated == {
        "jit": True,
        "computes": "bfloat16",
        "maps": "_ParallelMapDataset",
    }
    described = changes(box)
    assert described.keys() == everything.keys()
    assert all(each["changed"] for each in described.values())
    line = SCRIPT.splitlines().index("model.compile(optimizer=keras.optimizers.SGD(0.01),") + 1
    assert described["keras-jit"]["sites"] == [f"{tmp_path}/treated/script.py:{line}"]


OPTIONS = """
import json
import tensorflow as tf

def chain(dataset):
    while dataset is not None:
        yield type(dataset).__name__.strip("_").removesuffix("Dataset")
        dataset = getattr(dataset, "_input_dataset", None)

calls = []
def load(x):
    tf.py_function(lambda: calls.append(1), [], [])
    return x
data = tf.data.Dataset.range(8).map(load).map(lambda x: x + 1).shuffle(8).map(lambda x: x).batch(2)
seen = [sorted(int(x) for batch in data for x in batch) for _ in range(3)]
workers = tf.distribute.MultiWorkerMirroredStrategy()
mirrored = tf.distribute.MirroredStrategy(["cpu:0"])
weight, optimizer = tf.Variable(1.0), tf.keras.optimizers.SGD(0.1)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = weight * weight
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
print(json.dumps({
    "chain": list(chain(data)), "calls": len(calls), "seen": seen,
    "packs": workers.extended._communication_options.bytes_per_pack,
    "mirrored": type(mirrored.extended._cross_device_ops).__name__,
}))
"""


def test_caches_and_options_of_strategies(tmp_path: Path) -> None:
    """Only what the first map makes is kept: the later ones may draw random numbers."""
    untreated, _ = train(tmp_path / "untreated", OPTIONS, {}, ranks=1)
    assert untreated.pop("mirrored") != "HierarchicalCopyAllReduce"
    assert untreated == {
        "chain": ["Batch", "Map", "Shuffle", "Map", "Map", "Range"],
        "calls": 24,
        "seen": [[*range(1, 9)]] * 3,
        "packs": 0,
    }
    wanted = {"tf-cache": True, "tf-pack-size": 4, "tf-hierarchical-copy": True}
    treated, box = train(tmp_path / "treated", OPTIONS, wanted, ranks=1)
    assert treated == {
        "chain": ["Batch", "Map", "Shuffle", "Map", "Cache", "Map", "Range"],
        "calls": 8,
        "seen": [[*range(1, 9)]] * 3,
        "packs": 4 << 20,
        "mirrored": "HierarchicalCopyAllReduce",
    }
    assert {name: each["changed"] for name, each in changes(box).items()} == dict.fromkeys(
        wanted, 1
    )
