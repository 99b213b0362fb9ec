"""What torch says when a checkpoint cannot be written, read or fitted to the model."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_CORRUPT = (
    "Load the checkpoint before it. Write to a temporary name and `os.replace` it when it is "
    "complete, and let one rank alone write the file."
)
_ROOM = (
    "Make room in the checkpoint's folder (`df -h` and `df -i` show it, `quota -s` a quota): "
    "delete old checkpoints, or keep only the last few."
)
_SAME_MODEL = (
    "Build the model as it was when it was saved. If only `module.` (DDP's prefix) is too much: "
    "`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'module.')`."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="checkpoint-truncated",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="failed finding central directory",
        pattern=r"PytorchStreamReader failed reading zip archive: failed finding central directory",
        meaning="The checkpoint file is cut short or damaged. Its end is missing, as after a full "
        "disk, a job killed while saving, or two ranks writing one file.",
        fix=_CORRUPT,
        example="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding "
        "central directory. This is an internal miniz error. If you are seeing this error, there "
        "is a high likelihood that your checkpoint file is corrupted.",
        origin="made: torch.load of half a file, torch 2.13",
        more_heads=("failed reading zip archive",),
    ),
    Signature(
        id="checkpoint-damaged",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="PytorchStreamReader failed ",
        pattern=r"PytorchStreamReader failed (?:reading zip archive: (?!failed finding central)"
        r"|reading file |locating file )(?P<what>.{1,200}?)(?:\. This is|$)",
        meaning="The checkpoint file is damaged, or is not what `torch.save` wrote. torch says: "
        "{what}.",
        fix=_CORRUPT,
        example="RuntimeError: PytorchStreamReader failed locating file constants.pkl: file not "
        "found. This is an internal miniz error.",
        origin="made: torch.jit.load of a file of torch.save, torch 2.13",
        more_heads=(
            "PytorchStreamReader failed locating file",
            "PytorchStreamReader failed reading file",
        ),
    ),
    Signature(
        id="checkpoint-short-legacy",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="more bytes. The file might be corrupted",
        pattern=r"unexpected EOF, expected (?P<bytes>\d+) more bytes\. The file might be corrupted",
        meaning="The checkpoint file is {bytes} bytes shorter than it says.",
        fix=_CORRUPT,
        example="RuntimeError: unexpected EOF, expected 500 more bytes. The file might be "
        "corrupted.",
        origin="made: torch.load of a cut file in the old format, torch 2.13",
        more_heads=("RuntimeError: unexpected EOF, expected",),
    ),
    Signature(
        id="checkpoint-weights-only",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Weights only load failed",
        pattern=r"UnpicklingError: Weights only load failed",
        meaning="`torch.load` (safe by default since torch 2.6) refused the file: it holds Python "
        "objects besides tensors, or it is not a checkpoint at all (a Git LFS pointer, a web "
        "page).",
        fix="See with `head -c 100 FILE` whether it is a checkpoint. If it is and you trust it: "
        "`torch.serialization.add_safe_globals([...])` or `torch.load(..., weights_only=False)`; "
        "better save `state_dict()`s only.",
        example="_pickle.UnpicklingError: Weights only load failed. This file can still be "
        "loaded, to do so you have two options, do those steps only if you trust the source of "
        "the checkpoint.",
        origin="made: torch.load of an object of an own class, torch 2.13",
    ),
    Signature(
        id="checkpoint-forbidden-global",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="was not an allowed global by default",
        pattern=r"Unsupported global: GLOBAL (?P<object>[\w.]{1,200}) was not an allowed global by "
        r"default",
        meaning="The checkpoint holds a {object}, which the safe loader does not construct.",
        fix="Allow it with `torch.serialization.add_safe_globals([{object}])` before `torch.load` "
        "if you trust the file, or use `weights_only=False`.",
        example="WeightsUnpickler error: Unsupported global: GLOBAL numpy._core.multiarray.scalar "
        "was not an allowed global by default. Please use "
        "`torch.serialization.add_safe_globals([numpy._core.multiarray.scalar])`",
        origin="made: torch.load of a NumPy scalar, torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="state-dict-size",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="copying a param with shape",
        pattern=r"size mismatch for (?P<parameter>[\w.]{1,200}): copying a param with shape "
        r"torch\.Size\(\[(?P<saved>[\d, ]*)\]\) from checkpoint, the shape in current model is "
        r"torch\.Size\(\[(?P<current>[\d, ]*)\]\)",
        meaning="{parameter} is [{saved}] in the checkpoint and [{current}] in the model.",
        fix="Build the model with the sizes it was saved with (classes, vocabulary, width), or "
        "drop these entries from the state before loading with `strict=False`.",
        example="\tsize mismatch for weight: copying a param with shape torch.Size([5, 4]) from "
        "checkpoint, the shape in current model is torch.Size([4, 4]).",
        origin="made: load_state_dict of a layer of another width, torch 2.13",
    ),
    Signature(
        id="state-dict-keys",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="key(s) in state_dict: ",
        pattern=r"^\s*(?P<which>Missing|Unexpected) key\(s\) in state_dict: "
        r"(?P<keys>\"[^\"]{1,200}\"(?:, \"[^\"]{1,200}\"){0,3})",
        meaning="The names in the checkpoint and in the model differ ({which} {keys}).",
        fix=_SAME_MODEL,
        example='\tUnexpected key(s) in state_dict: "module.0.weight". ',
        origin="made: load_state_dict of a DDP model's state into the bare model, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="state-dict-load",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="in loading state_dict for ",
        pattern=r"RuntimeError: Error\(s\) in loading state_dict for (?P<model>[\w.]{1,200}):",
        meaning="The checkpoint does not fit the model {model}; the lines below it say where.",
        fix=_SAME_MODEL,
        example="RuntimeError: Error(s) in loading state_dict for Sequential:",
        origin="made: load_state_dict of another model's state, torch 2.13",
        weight=0.85,
        more_heads=("RuntimeError: Error(s) in loading",),
    ),
    Signature(
        id="optimizer-state-groups",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="loaded state dict ",
        pattern=r"ValueError: loaded state dict (?:has a different number of parameter "
        r"groups|contains a parameter group that doesn't match the size of optimizer's group)",
        meaning="The optimizer's saved state belongs to other parameter groups than it has now.",
        fix="Freeze and group the parameters as in the run that saved it, before the optimizer is "
        "made; or start with a new optimizer state.",
        example="ValueError: loaded state dict contains a parameter group that doesn't match the "
        "size of optimizer's group",
        origin="made: an optimizer's state loaded for a model without bias, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="checkpoint-of-cuda-on-cpu",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Attempting to deserialize object on a CUDA",
        pattern=r"Attempting to deserialize object on a CUDA device but "
        r"torch\.cuda\.is_available\(\) is False",
        meaning="The checkpoint was saved from a GPU, and this process sees none.",
        fix="Load it with `torch.load(path, map_location='cpu')`; if there should be a GPU, check "
        "the driver and CUDA_VISIBLE_DEVICES.",
        example="RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False. If you are running on a CPU-only machine, please use "
        "torch.load with map_location=torch.device('cpu') to map your storages to the CPU.",
        origin="made: torch.load of CUDA tensors on a CPU machine, torch 2.13",
    ),
    Signature(
        id="checkpoint-of-more-gpus",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Attempting to deserialize object on CUDA device",
        pattern=r"Attempting to deserialize object on CUDA device (?P<device>\d+) but "
        r"torch\.cuda\.device_count\(\) is (?P<count>\d+)",
        meaning="The checkpoint was saved from GPU {device}, and this process sees {count}.",
        fix="Load it with `torch.load(path, map_location='cpu')`, or to this rank's own GPU.",
        example="RuntimeError: Attempting to deserialize object on CUDA device 3 but "
        "torch.cuda.device_count() is 2. Please use torch.load with map_location to map your "
        "storages to an existing device.",
        origin="source: torch/serialization.py of torch 2.13",
    ),
    Signature(
        id="checkpoint-folder-missing",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="RuntimeError: Parent directory ",
        pattern=r"RuntimeError: Parent directory (?P<folder>\S{1,300}) does not exist",
        meaning="The checkpoint's folder {folder} does not exist on this host.",
        fix="Make it with `os.makedirs(folder, exist_ok=True)` on every rank (or on rank 0, then "
        "a barrier); on several hosts use a folder that all of them share.",
        example="RuntimeError: Parent directory /scratch/run7/checkpoints does not exist.",
        origin="made: torch.save into a folder that is not there, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="checkpoint-write-failed",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="] . unexpected pos ",
        pattern=r"enforce fail at inline_container\.cc:\d+\] \. unexpected pos (?P<position>\d+) "
        r"vs (?P<expected>\d+)",
        meaning="`torch.save` could not write any more, because the disk or the quota is full (or "
        "the file system went away). The file that it leaves is unusable.",
        fix=_ROOM,
        example="RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs "
        "534",
        origin="made: torch.save on a full tmpfs, torch 2.13",
        weight=0.85,
        more_heads=(
            "PytorchStreamWriter failed writing file",
            "PytorchStreamWriter failed writing central directory",
        ),
    ),
    Signature(
        id="checkpoint-write-errno",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="failed with No space left on device",
        pattern=r"write\(\): fd (?P<descriptor>\d+) failed with No space left on device",
        meaning="The disk (or the quota) was full while a checkpoint was written.",
        fix=_ROOM,
        example="RuntimeError: write(): fd 3 failed with No space left on device",
        origin="made: torch.save in the old format on a full tmpfs, torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="checkpoint-open-failed",
        code="failed-permission",
        role=Role.CAUSE,
        needle="open file failed with strerror:",
        pattern=r"enforce fail at inline_container\.cc:\d+\] \. open file failed with strerror: "
        r"(?P<why>Permission denied|Read-only file system|Operation not permitted)",
        meaning="The checkpoint file could not be opened for writing ({why}).",
        fix="Check the folder's owner and mode for the user that the job runs as (its uid in a "
        "container), and that it is not mounted read-only.",
        example="RuntimeError: [enforce fail at inline_container.cc:747] . open file failed with "
        "strerror: Permission denied",
        origin="made: torch.save into a folder of another user, torch 2.13",
    ),
    Signature(
        id="dcp-missing-key",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Missing key in checkpoint state_dict",
        pattern=r"Missing key in checkpoint state_dict: (?P<key>\S{1,300}?)\.$",
        meaning="The distributed checkpoint does not hold {key}, which is asked for.",
        fix="Load what was saved (model and optimizer of the same names), or "
        "`DefaultLoadPlanner(allow_partial_load=True)`.",
        example="RuntimeError: Missing key in checkpoint state_dict: model.head.weight.",
        origin="made: dcp.load of a name that was not saved, torch 2.13",
    ),
    Signature(
        id="dcp-size",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Size mismatch between saved ",
        pattern=r"Size mismatch between saved torch\.Size\(\[(?P<saved>[\d, ]*)\]\) and current: "
        r"torch\.Size\(\[(?P<current>[\d, ]*)\]\) for (?P<key>\S{1,300})",
        meaning="{key} is [{saved}] in the distributed checkpoint and [{current}] in the model.",
        fix="Build the model with the sizes it was saved with.",
        example="ValueError: Size mismatch between saved torch.Size([2]) and current: "
        "torch.Size([3]) for a",
        origin="made: dcp.load into a tensor of another size, torch 2.13",
    ),
    Signature(
        id="dcp-no-metadata",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="metadata is None; global metadata read failed",
        pattern=r"metadata is None; global metadata read failed: .{0,60}?'(?P<file>[^']{1,300})'",
        meaning="There is no complete distributed checkpoint, for {file} is missing. The folder "
        "is wrong, or the save was cut short.",
        fix="Point to the folder that holds `.metadata`, on a file system that all hosts share; "
        "else load the checkpoint before it.",
        example="AssertionError: metadata is None; global metadata read failed: [Errno 2] No such "
        "file or directory: '/scratch/run7/step_400/.metadata'; rank local metadata read failed: "
        "[Errno 2] No such file or directory: '/scratch/run7/step_400/__0.metadata'",
        origin="made: dcp.load of a folder that is not there, torch 2.13",
    ),
    Signature(
        id="checkpoint-reader-frame",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="(torch._C.PyTorchFileReader(",
        pattern=r"^\s{1,16}super\(.{0,60}\)\.__init__\(torch\._C\.PyTorchFileReader\(",
        meaning="torch could not open the checkpoint file: it is cut short, damaged, or no "
        "checkpoint.",
        fix="Check its size and copy it again, or load an older one.",
        example="    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))",
        origin="source: torch/serialization.py of torch 2.13",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="pickle-truncated",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="pickle data was truncated",
        pattern=r"UnpicklingError: pickle data was truncated",
        meaning="A pickled file is cut short.",
        fix="Copy it again, or load an older checkpoint.",
        example="_pickle.UnpicklingError: pickle data was truncated",
        origin="made: pickle.loads of half a pickle, Python 3.11",
        weight=0.8,
    ),
    Signature(
        id="checkpoint-magic-number",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Invalid magic number; corrupt file?",
        pattern=r"Invalid magic number; corrupt file\?",
        meaning="The file is no checkpoint of torch, or it is damaged.",
        fix="Check where it comes from: a page that was saved in its place, a pointer of Git LFS, "
        "or "
        "a broken copy.",
        example="RuntimeError: Invalid magic number; corrupt file?",
        origin="source: torch/serialization.py of torch 2.13",
    ),
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
        "its "
        "files.",
        example="DataLossError: Unable to open table file /m/model.ckpt: Data loss: not an sstable "
        "(bad magic number)",
        origin="source: strings in the library of TensorFlow 2.21",
    ),
)
