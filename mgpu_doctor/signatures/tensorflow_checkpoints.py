"""TensorFlow's and Keras's checkpoints and records: missing, damaged, or of another model."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_MODEL = "Build the model as it was when the checkpoint was saved, or load with `strict=False`."
_DAMAGED = (
    "Load an older checkpoint. Write to a temporary name and rename it, on rank 0 alone, so that a "
    "job that is killed leaves no half file."
)
_PATH = "Check the path on this host: all ranks must see the same file system."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="tf-checkpoint-key",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle=" not found in checkpoint",
        pattern=r"\bKey (?P<key>\S{1,300}) not found in checkpoint",
        meaning="The checkpoint has no variable {key}: it is of another model or optimizer.",
        fix="Restore into the model that it was written from, or restore only what both have "
        "(`expect_partial()`, `tf.train.init_from_checkpoint`).",
        example="NotFoundError: Key dense/kernel/Adam not found in checkpoint",
        origin="source: strings in the library of TensorFlow 2.21",
        weight=0.85,
    ),
    Signature(
        id="tf-checkpoint-no-table",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="not an sstable (bad magic number)",
        pattern=r"not an sstable \(bad magic number\)",
        meaning="The file is no checkpoint of TensorFlow, or it is damaged.",
        fix="Name the checkpoint by its prefix (`model.ckpt-1000`), without the ending of one of "
        "its files.",
        example="DataLossError: Unable to open table file /m/model.ckpt: Data loss: not an "
        "sstable (bad magic number)",
        origin="source: strings in the library of TensorFlow 2.21",
    ),
    Signature(
        id="tf-checkpoint-absent",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Unsuccessful TensorSliceReader constructor",
        pattern=r"Unsuccessful TensorSliceReader constructor: Failed to find any matching files "
        r"for (?P<file>\S{1,300})",
        meaning="There is no checkpoint {file}.",
        fix="Give the prefix without `.index`; `tf.train.latest_checkpoint(folder)` finds the "
        "newest. Every worker must see the same folder.",
        example="tensorflow.python.framework.errors_impl.NotFoundError: Unsuccessful "
        "TensorSliceReader constructor: Failed to find any matching files for /data/ckpt/none",
        origin="made: restore of a checkpoint that is not there, TensorFlow 2.21",
    ),
    Signature(
        id="tf-checkpoint-shape",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Received incompatible tensor with shape ",
        pattern=r"Received incompatible tensor with shape (?P<saved>\([\d, ]*\)) when attempting "
        r"to restore variable with shape (?P<wanted>\([\d, ]*\)) and name (?P<name>\S{1,120}?)\.?$",
        meaning="The checkpoint's {name} has shape {saved}, the model's has {wanted}: it is of "
        "another model.",
        fix="Build the model as it was when it was saved, or leave that layer out.",
        example="ValueError: Received incompatible tensor with shape (3,) when attempting to "
        "restore variable with shape (5,) and name Variable:0.",
        origin="made: a variable of 3 restored into one of 5, TensorFlow 2.21",
    ),
    Signature(
        id="tf-checkpoint-damaged",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="file is too short to be an sstable",
        pattern=r"file is too short to be an sstable",
        meaning="The checkpoint's index is cut off: it was not written to its end.",
        fix="Use the checkpoint before it; the disk may have been full or the job killed.",
        example="tensorflow.python.framework.errors_impl.OpError: file is too short to be an "
        "sstable",
        origin="made: restore of a checkpoint whose index was cut, TensorFlow 2.21",
    ),
    Signature(
        id="tf-assign-shapes",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Assign requires shapes of both tensors to match",
        pattern=r"Assign requires shapes of both tensors to match\. lhs shape= ?"
        r"(?P<model>\[[\d,]{0,60}\]) rhs shape= ?(?P<file>\[[\d,]{0,60}\])",
        meaning="A variable of the model has shape {model}, its value in the checkpoint {file}.",
        fix=_MODEL,
        example="InvalidArgumentError: Assign requires shapes of both tensors to match. lhs "
        "shape= [1024,10] rhs shape= [1024,1000]",
        origin="source: strings in the library of TensorFlow 2",
    ),
    Signature(
        id="tf-checksum",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Checksum does not match: stored ",
        pattern=r"Checksum does not match: stored \d{1,12} vs\. calculated",
        meaning="The checkpoint is damaged: a checksum does not match.",
        fix=_DAMAGED,
        example="DataLossError: Checksum does not match: stored 4711 vs. calculated on the "
        "restored bytes 815",
        origin="source: strings in the library of TensorFlow 2",
    ),
    Signature(
        id="tf-restore-failed",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Restoring from checkpoint failed. This is most likely",
        pattern=r"Restoring from checkpoint failed\. This is most likely",
        meaning="The checkpoint does not fit the graph.",
        fix=_MODEL,
        example="NotFoundError: Restoring from checkpoint failed. This is most likely due to a "
        "Variable name or other graph key that is missing from the checkpoint.",
        origin="source: tensorflow/python/training/saver.py of TensorFlow 2",
        weight=0.85,
    ),
    Signature(
        id="tf-no-valid-checkpoint",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="save_path ",
        pattern=r"The passed save_path is not a valid checkpoint|Can't load save_path when it is "
        r"None",
        meaning="There is no checkpoint at the path that was given.",
        fix=_PATH,
        example="ValueError: The passed save_path is not a valid checkpoint: ./model.ckpt",
        origin="source: tensorflow/python/training/saver.py of TensorFlow 2",
    ),
    Signature(
        id="tf-table-unreadable",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Unable to open table file ",
        pattern=r"Unable to open table file .{1,300}?: (?:Failed precondition|FAILED_PRECONDITION)",
        meaning="The path is a folder, not the prefix of a checkpoint.",
        fix="Pass the prefix (`model.ckpt-1000`), not the folder.",
        example="DataLossError: Unable to open table file ./model: Failed precondition: ./model; "
        "Is a directory: perhaps your file is in a different file format",
        origin="recalled: tensorflow/core/util/tensor_slice_reader.cc of TensorFlow 2",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="keras-weights-mismatch",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle=" objects could not be loaded.",
        pattern=r"A total of (?P<count>\d+) objects could not be loaded\.",
        meaning="{count} layers of the saved weights do not fit the model.",
        fix="Build the model as it was when it was saved, or `load_weights(..., "
        "skip_mismatch=True)` on purpose.",
        example="ValueError: A total of 1 objects could not be loaded. Example error message for "
        "object <Dense name=dense_1, built=True>:",
        origin="made: weights of a layer of 2 loaded into one of 3, Keras 3.15",
        needle_tells=False,
    ),
    Signature(
        id="keras-layer-count",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Layer count mismatch when loading weights",
        pattern=r"Layer count mismatch when loading weights from file",
        meaning="The weights are of a model with another number of layers.",
        fix=_MODEL,
        example="ValueError: Layer count mismatch when loading weights from file. Model expected "
        "100 layers, found 0 saved layers.",
        origin="source: keras/src/legacy/saving of Keras 3",
        weight=0.6,
        more_heads=("trying to load a weight file containing",),
    ),
    Signature(
        id="keras-model-absent",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="File not found: filepath=",
        pattern=r"File not found: filepath=(?P<file>\S{1,300}?)\. Please ensure the file is an "
        r"accessible `\.keras` zip file",
        meaning="There is no {file}, or it is cut off or of another format.",
        fix="`unzip -t {file}` shows whether it is complete; it may have been written by a job "
        "that was killed, or by another version of Keras.",
        example="ValueError: File not found: filepath=/data/model.keras. Please ensure the file "
        "is an accessible `.keras` zip file.",
        origin="made: load_model of a file of letters, Keras 3.15",
    ),
    Signature(
        id="tf-record-damaged",
        code="failed-exception",
        role=Role.CAUSE,
        needle="ed record at ",
        pattern=r"\b(?P<how>corrupted|truncated) record at (?P<offset>\d+)",
        meaning="A TFRecord file of the data set is {how} at byte {offset}, or no TFRecord file.",
        fix="Find the file (read them one by one) and write it again; "
        "`ds.ignore_errors(log_warning=True)` skips it.",
        example="tensorflow.python.framework.errors_impl.DataLossError: {{function_node "
        "__wrapped__IteratorGetNext_output_types_1_device_/job:localhost/replica:0/task:0/"
        "device:CPU:0}} "
        "corrupted record at 0 (Is this even a TFRecord file?) [Op:IteratorGetNext] name: ",
        origin="made: a file of letters read as TFRecord, TensorFlow 2.21",
        needle_tells=False,
    ),
)
