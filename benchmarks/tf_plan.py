"""Memory that `plan` predicts for TensorFlow steps, compared with its own allocator's.

    python -m benchmarks.tf_plan [--quick]

TensorFlow's GPU allocator manages the host's memory here, so that it reports the true peak of a
real step without a GPU. Convolutions on a CPU need scratch memory that they do not need on a GPU,
so the peak without it is also printed: the error is relative to that.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.support import machine
from mgpu_doctor.plan.tracing.tracing_server import SWITCHES

QUICK = (("gpt_nano", 16, "fp32", 1), ("gpt_nano", 32, "fp32", 1), ("cnn_nano", 256, "fp32", 1))
CASES = (
    *QUICK,
    ("gpt_nano", 64, "fp32", 1),
    ("gpt_nano", 32, "bf16", 1),
    ("gpt_nano", 16, "fp32", 2),
    ("cnn_nano", 1024, "fp32", 1),
    ("cnn_nano", 1024, "bf16", 1),
    ("resnet50", 4, "fp32", 1),
    ("resnet50", 8, "fp32", 1),
    ("resnet50", 16, "fp32", 1),
)
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three cases of eleven")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(_case(*json.loads(arguments.case))))
        return
    print(machine())
    print("model      batch prec acc | breadth written |   real without scratch | errors")
    errors: dict[str, list[float]] = {"breadth": [], "written": []}
    for case in QUICK if arguments.quick else CASES:
        peaks = _run_in_child(case)
        net = peaks["net"]
        for order, deviations in errors.items():
            deviations.append(peaks[order] / net - 1)
        row = " ".join(f"{peaks[key] / MIB:7.1f}" for key in ("breadth", "written", "real", "net"))
        off = " ".join(f"{deviations[-1]:+6.1%}" for deviations in errors.values())
        print(f"{case[0]:10} {case[1]:5} {case[2]} {case[3]:3} | {row} | {off}", flush=True)
    for order, deviations in errors.items():
        middle = statistics.median(abs(error) for error in deviations)
        worst = f"{min(deviations):+.1%} to {max(deviations):+.1%}"
        print(f"{order}: median error {middle:.1%}, {worst} ({len(deviations)} cases)")


def _run_in_child(case: tuple[str, int, str, int]) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.tf_plan", "--case", json.dumps(case)]
    process = subprocess.run(
        command,
        env={**os.environ, **SWITCHES},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    peaks: dict[str, int] = json.loads(process.stdout.splitlines()[-1])
    return peaks


def _case(model: str, batch: int, precision: str, accumulate: int) -> dict[str, int]:
    from mgpu_doctor.analysis.memory.allocator_replay import replay
    from mgpu_doctor.analysis.memory.liveness import Order
    from mgpu_doctor.analysis.memory.memory_plan import Framework, Precision, Settings
    from mgpu_doctor.plan.tracing import graph_run, graph_step, user_function

    function = user_function.find_function(f"mgpu_trainers.tensorflow.tf_plan_models:{model}")
    settings = Settings(batch, accumulate, precision=Precision(precision))
    peaks: dict[str, int] = {}
    for order in Order:
        stream = graph_step.trace(function, settings, real=False, order=order).stream
        played = replay(stream, framework=Framework.TENSORFLOW)
        peaks[order.name.lower()] = played.peak_allocated
    took: list[tuple[int, int]] = []

    def recorded(traced: Any, batch: Any) -> int:
        took.append(_recorded(traced, batch))
        return took[0][0]

    graph_run.measure_peak = recorded
    graph_step.trace(function, settings, real=True)
    peaks["real"], peaks["net"] = took[0]
    return peaks


def _recorded(traced: Any, batch: Any) -> tuple[int, int]:
    """Bytes in use at the peak of a step, without the data set; and those without the scratch
    memory of convolutions."""
    import tensorflow as tf

    inputs = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(batch)]
    traced(*inputs)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        traced(*inputs)
        tf.profiler.experimental.stop()
        events = sorted(_events(folder), key=lambda event: event[0])
    most = net = 0
    scratch: dict[int, int] = {}
    for _, name, statistics_of_event in events:
        scratch.pop(statistics_of_event["addr"], None)
        operation = str(statistics_of_event.get("tf_op", ""))
        if (
            name == "MemoryAllocation"
            and statistics_of_event.get("region_type") == "temp"
            and "onv" in operation
        ):
            scratch[statistics_of_event["addr"]] = statistics_of_event["allocation_bytes"]
        most = max(most, statistics_of_event["bytes_allocated"])
        net = max(net, statistics_of_event["bytes_allocated"] - sum(scratch.values()))
    return most, net


def _events(folder: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    (file,) = glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb")
    with open(file, "rb") as opened:
        space.ParseFromString(opened.read())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name in ("MemoryAllocation", "MemoryDeallocation"):
                    event_statistics = {}
                    for stat in event.stats:
                        value = getattr(stat, stat.WhichOneof("value"))
                        if stat.WhichOneof("value") == "ref_value":
                            value = plane.stat_metadata[value].name
                        event_statistics[plane.stat_metadata[stat.metadata_id].name] = value
                    yield line.timestamp_ns * 1000 + event.offset_ps, name, event_statistics


if __name__ == "__main__":
    main()
