"""The folder in which a process of a cluster sits, so that what is sent to it knows which it is.

Graphs that run on a worker come from the chief and hold no Python. They can read a file there.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from mgpu_trainers.cluster import Task

FOLDER = "MGPU_DOCTOR_CLUSTER"
"""Environment variable: the folder that holds those of all processes of a launcher."""
INDEX = "index"
PROCESS = "pid"


def occupy(task: Task) -> None:
    """Makes the folder and goes there."""
    base = os.environ.get(FOLDER) or tempfile.mkdtemp()
    folder = _of(base, task)
    folder.mkdir()
    (folder / INDEX).write_text(str(task.index))
    (folder / PROCESS).write_text(str(os.getpid()))
    os.chdir(folder)


def index() -> Any:
    """In a graph: of the worker that runs it."""
    import tensorflow as tf

    return tf.strings.to_number(tf.io.read_file(INDEX), tf.int64)


def process(task: Task) -> int | None:
    """The id of the process, where our launcher started it on this machine."""
    base = os.environ.get(FOLDER)
    file = _of(base, task) / PROCESS if base else None
    return int(file.read_text()) if file and file.exists() else None


def _of(base: str, task: Task) -> Path:
    return Path(base) / f"{task.role}-{task.index}"
