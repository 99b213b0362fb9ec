"""Further words for checkpoints that cannot be saved or loaded: older torch, Hugging Face, HDF5 and
TensorFlow; and for what fills or closes a file system while they are written."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_DAMAGED = (
    "Load an older checkpoint. Write to a temporary name and rename it, on rank 0 alone, so that a "
    "job that is killed leaves no half file."
)
_PATH = "Check the path on this host: all ranks must see the same file system."
_MODEL = "Build the model as it was when the checkpoint was saved, or load with `strict=False`."


def _checkpoint(
    name: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str = _DAMAGED,
    code: str = "failed-checkpoint",
    role: Role = Role.CAUSE,
    weight: float = 0.85,
    needle_tells: bool = False,
    more_heads: tuple[str, ...] = (),
) -> Signature:
    """A checkpoint or file that cannot be read or written."""
    return Signature(
        id=name,
        code=code,
        role=role,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        weight=weight,
        needle_tells=needle_tells,
        more_heads=more_heads,
    )


SIGNATURES: tuple[Signature, ...] = (
    _checkpoint(
        "storage-wrong-size",
        "storage has wrong ",
        r"storage has wrong (?:byte )?size: expected (?P<wanted>-?\d{1,20}) got "
        r"(?P<got>-?\d{1,20})",
        meaning="The checkpoint is damaged: a tensor has {got} bytes instead of {wanted}.",
        example="RuntimeError: storage has wrong byte size: expected 14345328 got 2359296",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
    ),
    _checkpoint(
        "file-may-be-corrupted",
        "unexpected EOF. The file might be corrupted",
        r"unexpected EOF\. The file might be corrupted",
        meaning="The checkpoint ends too early: it was written or copied only in part.",
        example="RuntimeError: unexpected EOF. The file might be corrupted.",
        origin="recalled: torch/csrc/serialization.cpp of torch 1.0",
        weight=0.95,
        needle_tells=True,
    ),
    _checkpoint(
        "checkpoint-part-missing",
        " file not found: ",
        r"enforce fail at inline_container\.cc:\d{1,6}\] ?\. file not found: (?P<part>\S{1,200})",
        meaning="The checkpoint is damaged: its part {part} is missing. Several ranks may have "
        "written it at once.",
        example="RuntimeError: [enforce fail at inline_container.cc:209] . file not found: "
        "archive/data/4711",
        origin="recalled: caffe2/serialize/inline_container.cc of torch 1.6",
        weight=0.95,
    ),
    _checkpoint(
        "checkpoint-newer-format",
        "but the maximum supported version for reading is",
        r"Attempted to read a PyTorch file with version (?P<version>\d{1,6}), but the maximum "
        r"supported version for reading is (?P<most>\d{1,6})",
        meaning="The checkpoint has format {version}; this torch reads formats up to {most}.",
        fix="Load it with the torch that wrote it, or a newer one.",
        example="RuntimeError: Attempted to read a PyTorch file with version 3, but the maximum "
        "supported version for reading is 2. Your PyTorch installation may be too old.",
        origin="recalled: caffe2/serialize/inline_container.cc of torch 1.4",
        weight=0.95,
        needle_tells=True,
    ),
    _checkpoint(
        "checkpoint-is-zip",
        " is a zip archive (did you mean ",
        r" is a zip archive \(did you mean to use torch\.jit\.load\(\)\?\)",
        meaning="The checkpoint is of a newer torch than the one that reads it, or a script "
        "module.",
        fix="Load it with a newer torch, or with `torch.jit.load`.",
        example="RuntimeError: best.pt is a zip archive (did you mean to use torch.jit.load()?)",
        origin="source: torch/serialization.py of torch 2.13",
        weight=0.9,
        needle_tells=True,
    ),
    _checkpoint(
        "checkpoint-class-missing",
        "on <module '__main__'",
        r"Can't get attribute '(?P<name>\w{1,80})' on <module '__main__'",
        meaning="The checkpoint holds a pickled object of the class {name}, which this script does "
        "not define.",
        fix="Import that class before loading; save `state_dict()` instead of whole objects.",
        example="AttributeError: Can't get attribute 'Model' on <module '__main__' from 'test.py'>",
        origin="made: torch.load of a model whose class is in another script, torch 2.13",
        weight=0.8,
    ),
    _checkpoint(
        "checkpoint-cannot-be-opened",
        " cannot be opened.",
        r"RuntimeError: File (?P<file>\S{1,300}) cannot be opened\.",
        meaning="The file {file} cannot be written: the folder is missing or not writable, or the "
        "disk is full.",
        fix="`ls -ld` of the folder, `df -h` and `quota -s`; let rank 0 make the folder first.",
        example="RuntimeError: File out/checkpoints/checkpoint_0.pt cannot be opened.",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
    ),
    _checkpoint(
        "write-failed-errno",
        "write(): fd ",
        r"\bwrite\(\): fd \d{1,7} failed with (?P<what>Input/output error|Disk quota exceeded|File "
        r"too large|Stale file handle)",
        meaning="Writing a checkpoint failed: {what}.",
        fix="`df -h`, `quota -s` and `dmesg -T` on that host; write to another file system.",
        example="RuntimeError: write(): fd 29 failed with Input/output error",
        origin="source: torch/csrc/serialization.cpp of torch 2.13",
        code="failed-disk-full",
        weight=0.85,
    ),
    _checkpoint(
        "stream-write-failed",
        "iostream error",
        r"basic_ios::clear: iostream error",
        meaning="Writing a file failed: mostly the disk or the quota is full.",
        fix="`df -h` and `quota -s` on that host.",
        example="RuntimeError: basic_ios::clear: iostream error",
        origin="recalled: libstdc++ of GCC 12",
        code="failed-disk-full",
        weight=0.7,
    ),
    _checkpoint(
        "legacy-write-short",
        " requested and ",
        r"\b\d{1,15} requested and \d{1,15} written",
        meaning="Fewer bytes were written than asked for: the disk or the quota is full.",
        fix="`df -h` and `quota -s` on that host.",
        example="OSError: 1234567 requested and 0 written",
        origin="recalled: NumPy 1.20's tofile",
        code="failed-disk-full",
        weight=0.9,
    ),
    _checkpoint(
        "safetensors-no-space",
        "No space left on device (os error",
        r"No space left on device \(os error 28\)",
        meaning="The disk is full.",
        fix="`df -h` on that host; keep fewer checkpoints.",
        example="SafetensorError: Error while serializing: I/O error: No space left on device (os "
        "error 28)",
        origin="recalled: safetensors 0.5",
        code="failed-disk-full",
        weight=0.95,
    ),
    _checkpoint(
        "tool-no-space",
        ": No space left on device",
        r"^(?:cp|mv|tar|rsync|tee|dd|cat|write|mkdir|bash|sh|wget|curl|unzip|echo|touch|git|conda|"
        r"pip"
        r"|tmux)\b.{0,200}?: No space left on device\s*$",
        meaning="The disk is full.",
        fix="`df -h` and `df -i` on that host.",
        example="tee: train.log: No space left on device",
        origin="made: tee to a full file system, coreutils 9",
        code="failed-disk-full",
        weight=0.8,
    ),
    _checkpoint(
        "quota-exceeded-bare",
        "Disk quota exceeded",
        r"^(?:\S{1,200}: ){0,2}Disk quota exceeded\s*$",
        meaning="The disk quota of the user or group is used up.",
        fix="`quota -s` shows it; remove old checkpoints or write elsewhere.",
        example="Disk quota exceeded",
        origin="recalled: the error texts of glibc 2.36",
        code="failed-disk-full",
        weight=0.8,
    ),
    _checkpoint(
        "hub-file-missing",
        "Error no file named ",
        r"Error no file named .{1,200}? found in directory",
        meaning="The folder holds no weights.",
        fix=_PATH,
        example="OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, "
        "model.ckpt.index or flax_model.msgpack found in directory ./out.",
        origin="recalled: transformers/modeling_utils.py of Transformers 4",
        needle_tells=True,
    ),
    _checkpoint(
        "hub-checkpoint-missing",
        "Can't find a valid checkpoint at ",
        r"Can't find a valid checkpoint at (?P<path>\S{1,300})",
        meaning="There is no checkpoint to resume from at {path}.",
        fix=_PATH,
        example="ValueError: Can't find a valid checkpoint at ./out/checkpoint-500",
        origin="recalled: transformers/trainer.py of Transformers 4",
        needle_tells=True,
    ),
    _checkpoint(
        "deepspeed-folder-missing",
        "Error: Directory '",
        r"FileNotFoundError: Directory '(?P<path>[^']{1,300})' doesn't exist",
        meaning="There is no checkpoint folder {path}.",
        fix=_PATH,
        example="FileNotFoundError: Directory './checkpoint-500' doesn't exist",
        origin="source: deepspeed/utils/zero_to_fp32.py of DeepSpeed 0.16",
    ),
    _checkpoint(
        "archive-not-zip",
        "BadZipFile: File is not a zip file",
        r"BadZip[Ff]ile: File is not a zip file",
        meaning="The archive is damaged or was downloaded only in part.",
        example="zipfile.BadZipFile: File is not a zip file",
        origin="made: zipfile.ZipFile of a text file, Python 3.11",
        weight=0.75,
        needle_tells=True,
    ),
    _checkpoint(
        "hdf5-damaged",
        "Unable to ",
        r"Unable to (?:synchronously )?open file \((?:file signature not found|truncated file: "
        r"|bad "
        r"object header)",
        meaning="The HDF5 file is damaged: it was written or copied only in part.",
        example="OSError: Unable to open file (truncated file: eof = 12, sblock->base_addr = 0, "
        "stored_eof = 20)",
        origin="recalled: h5py 3",
        weight=0.9,
    ),
    _checkpoint(
        "keras-layer-count",
        "Layer count mismatch when loading weights",
        r"Layer count mismatch when loading weights from file",
        meaning="The weights are of a model with another number of layers.",
        fix=_MODEL,
        example="ValueError: Layer count mismatch when loading weights from file. Model expected "
        "100 layers, found 0 saved layers.",
        origin="source: keras/src/legacy/saving of Keras 3",
        weight=0.6,
        needle_tells=True,
        more_heads=("trying to load a weight file containing",),
    ),
    _checkpoint(
        "state-dict-key-old",
        "unexpected key ",
        r"KeyError: .{0,3}unexpected key \"(?P<key>[\w.]{1,200})\" in state_dict",
        meaning="The checkpoint has a weight {key} that the model has not.",
        fix=_MODEL + " A prefix `module.` comes from DataParallel and DDP.",
        example="KeyError: 'unexpected key \"module.features.0.weight\" in state_dict'",
        origin="recalled: torch/nn/modules/module.py of torch 0.3",
        weight=0.95,
    ),
    _checkpoint(
        "tf-assign-shapes",
        "Assign requires shapes of both tensors to match",
        r"Assign requires shapes of both tensors to match\. lhs shape= ?(?P<model>\[[\d,]{0,60}\]) "
        r"rhs shape= ?(?P<file>\[[\d,]{0,60}\])",
        meaning="A variable of the model has shape {model}, its value in the checkpoint {file}.",
        fix=_MODEL,
        example="InvalidArgumentError: Assign requires shapes of both tensors to match. lhs shape= "
        "[1024,10] rhs shape= [1024,1000]",
        origin="source: strings in the library of TensorFlow 2",
        weight=0.9,
        needle_tells=True,
    ),
    _checkpoint(
        "tf-checksum",
        "Checksum does not match: stored ",
        r"Checksum does not match: stored \d{1,12} vs\. calculated",
        meaning="The checkpoint is damaged: a checksum does not match.",
        example="DataLossError: Checksum does not match: stored 4711 vs. calculated on the "
        "restored "
        "bytes 815",
        origin="source: strings in the library of TensorFlow 2",
        weight=0.9,
        needle_tells=True,
    ),
    _checkpoint(
        "tf-restore-failed",
        "Restoring from checkpoint failed. This is most likely",
        r"Restoring from checkpoint failed\. This is most likely",
        meaning="The checkpoint does not fit the graph.",
        fix=_MODEL,
        example="NotFoundError: Restoring from checkpoint failed. This is most likely due to a "
        "Variable name or other graph key that is missing from the checkpoint.",
        origin="source: tensorflow/python/training/saver.py of TensorFlow 2",
        weight=0.85,
        needle_tells=True,
    ),
    _checkpoint(
        "tf-no-valid-checkpoint",
        "save_path ",
        r"The passed save_path is not a valid checkpoint|Can't load save_path when it is None",
        meaning="There is no checkpoint at the path that was given.",
        fix=_PATH,
        example="ValueError: The passed save_path is not a valid checkpoint: ./model.ckpt",
        origin="source: tensorflow/python/training/saver.py of TensorFlow 2",
        weight=0.9,
    ),
    _checkpoint(
        "tf-table-unreadable",
        "Unable to open table file ",
        r"Unable to open table file .{1,300}?: (?:Failed precondition|FAILED_PRECONDITION)",
        meaning="The path is a folder, not the prefix of a checkpoint.",
        fix="Pass the prefix (`model.ckpt-1000`), not the folder.",
        example="DataLossError: Unable to open table file ./model: Failed precondition: ./model; "
        "Is "
        "a directory: perhaps your file is in a different file format",
        origin="recalled: tensorflow/core/util/tensor_slice_reader.cc of TensorFlow 2",
        weight=0.85,
    ),
    _checkpoint(
        "permission-bare",
        "ermission denied",
        r"^(?:RuntimeError: Permission denied[\",]{0,3}|-?(?:bash|sh): (?:line \d{1,6}: "
        r")?\S{1,300}: "
        r"Permission denied|mkdir: .{1,300}: Permission denied|.{0,80}PermissionDeniedError: "
        r".{1,300}"
        r"Permission denied|docker: Got permission denied while trying to connect.{0,200})\s*$",
        meaning="A file, folder or program may not be used by this user.",
        fix="`ls -l` and `id` on that host; `chmod +x` for a script.",
        example="-bash: ./train.sh: Permission denied",
        origin="made: a script without the executable bit, bash 5.2",
        code="failed-permission",
        role=Role.SYMPTOM,
        weight=0.75,
    ),
    _checkpoint(
        "open-files-elsewhere",
        "oo many open files",
        r"\bCall to \w{1,30} failed ?: Too many open files|; Too many open files\s*$|errno: 24 - "
        r"Too many open files",
        meaning="The process or the host may open no more files.",
        fix="`ulimit -n 65536` before the job, or `torch.multiprocessing.set_sharing_strategy("
        "'file_system')`.",
        example="ResourceExhaustedError: /data/train-0007.tfrecord; Too many open files",
        origin="recalled: tensorflow/core/platform of TensorFlow 2",
        code="failed-open-files",
        weight=0.85,
    ),
    _checkpoint(
        "shm-map-refused",
        "unable to mmap ",
        r"unable to mmap \d{1,15} bytes from file </torch_\w{1,60}>",
        meaning="No shared memory is left for the tensors of data-loader workers.",
        fix="`docker run --shm-size=16g` or `--ipc=host`; fewer workers.",
        example="RuntimeError: unable to mmap 8 bytes from file </torch_4711_2>: Cannot allocate "
        "memory (12)",
        origin="source: strings in the library of torch 2.13",
        code="shm-exhausted",
        weight=0.85,
    ),
    _checkpoint(
        "shm-allocation-refused",
        "unable to allocate shared memory(shm) for ",
        r"unable to allocate shared memory\(shm\) for file </torch_\w{1,60}>: (?!No space left)",
        meaning="No shared memory is left for the tensors of data-loader workers.",
        fix="`docker run --shm-size=16g` or `--ipc=host`; fewer workers.",
        example="RuntimeError: unable to allocate shared memory(shm) for file </torch_4711_1>: "
        "Success (0)",
        origin="source: strings in the library of torch 2.13",
        code="shm-exhausted",
        weight=0.85,
    ),
)
