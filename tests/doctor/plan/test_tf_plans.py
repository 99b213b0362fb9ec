"""Plans of TensorFlow's steps against real steps, in processes of their own."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from mgpu_doctor.analysis.memory.allocator_replay import replay
from mgpu_doctor.analysis.memory.memory_plan import Framework, Settings
from mgpu_doctor.analysis.memory.prediction import LIVENESS
from mgpu_doctor.cli import app
from mgpu_doctor.plan.fork_server import ForkServer, Worker
from mgpu_doctor.plan.step_tracer import Method, StepTracer
from mgpu_doctor.plan.tracing_protocol import Answer
from tests.support.jobs import alone

TENSORFLOW = Framework.TENSORFLOW
LIMIT = 600


@pytest.mark.slow
def test_what_the_graph_tells_is_near_what_the_allocator_of_a_real_step_says() -> None:
    """The allocator is the one that TensorFlow has for GPUs, put in charge of the host."""
    target = "mgpu_trainers.tensorflow.tf_plan_models:gpt_nano"
    with (
        alone(),
        closing(ForkServer(target)) as server,
        closing(Worker(server, LIMIT)) as worker,
    ):
        graph, real = (worker.trace(Settings(16), real=real) for real in (False, True))
    assert isinstance(graph, Answer)
    assert isinstance(real, Answer)
    assert graph.framework is real.framework is TENSORFLOW
    told, took = (replay(each.stream, framework=TENSORFLOW) for each in (graph, real))
    assert told.peak_allocated == pytest.approx(took.peak_allocated, rel=LIVENESS)


LOOPING = """
import tensorflow as tf, keras

def plan():
    inputs = keras.Input((256,))
    model = keras.Model(inputs, keras.layers.Dense(256)(inputs))

    def loss(model, batch):
        rounds = tf.cast(batch[0, 0], tf.int32) + 2
        body = lambda i, x: (i + 1, model(x))
        return tf.reduce_mean(tf.while_loop(lambda i, _: i < rounds, body, (0, batch))[1])

    return model, lambda samples: tf.ones((samples, 256)), loss
"""


@pytest.mark.slow
def test_a_step_with_a_loop_is_run_small_and_known_at_any_batch(tmp_path: Path) -> None:
    script = tmp_path / "loops_of_its_own.py"
    script.write_text(LOOPING, encoding="utf-8")
    wanted = Settings(4096)
    with alone(), StepTracer(str(script), LIMIT, lambda _: None) as follower:
        followed = follower.trace(wanted, replace(wanted, batch=2048))
    assert (followed.method, followed.framework) == (Method.REAL, TENSORFLOW)
    assert "control flow" in followed.reasons[0]
    findings = followed.traces.find(wanted)
    assert findings is not None
    least = 3 * 4096 * 256 * 4  # the batch, and what the later rounds keep for backward
    assert findings.basis == "from traces at batch 1024 and 2048"
    assert least < replay(findings.stream, framework=TENSORFLOW).peak_allocated < 4 * least


@pytest.mark.slow
def test_a_script_of_tensorflow_is_planned_as_one(tmp_path: Path) -> None:
    script = tmp_path / "its_keras_model.py"
    script.write_text(
        "import keras, tensorflow as tf\n"
        "def plan():\n"
        "    print('this must not stand in the answer')\n"
        "    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])\n"
        "    model.compile(optimizer='adam', loss='mse')\n"
        "    return model, lambda samples: (tf.ones((samples, 8)), tf.ones((samples, 8)))\n",
        encoding="utf-8",
    )
    command = ["plan", str(script), "--limit", str(LIMIT), "--json", "--ranks", "2"]
    done = CliRunner().invoke(app, command)
    document = json.loads(done.stdout)
    assert (done.exit_code, document["framework"], document["method"]) == (0, "tensorflow", "graph")
    assert document["plan"]["strategy"] == "mirrored"
    done = CliRunner().invoke(app, [*command, "--strategy", "fsdp"])
    assert done.exit_code == 3
    assert "single and mirrored" in done.stderr
