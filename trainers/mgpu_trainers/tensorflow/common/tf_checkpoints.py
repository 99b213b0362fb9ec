"""One checkpoint in a folder, and the way back from it."""

import sys
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf


class Checkpoint:
    """What a checkpoint is of. `folder`: of this process, which others may not share."""

    def __init__(
        self, name: str, kind: str, folder: str | None, model: Any, optimizer: Any
    ) -> None:
        self._name = name
        self._kind = kind
        self._folder = folder
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._whole = tf.train.Checkpoint(step=self._step, model=model, optimizer=optimizer)

    def save(self, step: int) -> None:
        """Replaces the previous checkpoint."""
        self._step.assign(step)
        self._manager.save(checkpoint_number=step)

    def resume(self, folder: str) -> int:
        """The step after which the checkpoint was saved; 0: no checkpoint.

        Ends the process with one sentence where it cannot be read, or is of another model.
        """
        listed = Path(folder) / "checkpoint"
        if not listed.exists():
            return 0
        latest = tf.train.latest_checkpoint(folder)
        if latest is None:
            self._give_up(f"{listed} cannot be read; move it away")
        kind = Path(latest).name.rpartition("-")[0]
        if kind != self._kind:
            self._give_up(f"{latest} is of {kind}, not of {self._kind}")
        try:
            # The checks below decide; without this, TensorFlow would warn about each weight.
            self._whole.restore(latest).expect_partial().assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            why = type(error).__name__
            self._give_up(f"{latest} cannot be resumed from ({why}); move {folder} away")
        return int(self._step.numpy())

    @cached_property
    def _manager(self) -> Any:
        return tf.train.CheckpointManager(
            self._whole, self._folder, max_to_keep=1, checkpoint_name=self._kind
        )

    def _give_up(self, why: str) -> NoReturn:
        print(f"{self._name}: {why}", file=sys.stderr)
        sys.exit(2)
