"""Checkpoint files of torch and Hugging Face that are missing, damaged or unreadable."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_OLDER = (
    "Load an older checkpoint. To avoid half-written files, let one rank alone write to a "
    "temporary name, and rename the file (`os.replace`) when it is complete."
)
_PATH = "Check the path on this host: all ranks must see the same file system."

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="checkpoint-truncated",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="failed finding central directory",
        pattern=r"PytorchStreamReader failed reading zip archive: failed finding central directory",
        meaning="The checkpoint file is cut short or damaged. Its end is missing, as after a full "
        "disk, a job killed while saving, or two ranks writing one file.",
        fix=_OLDER,
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
        pattern=r"PytorchStreamReader failed (?:reading zip archive: (?!failed finding central)|"
        r"reading file |locating file )(?P<what>.{1,200}?)(?:\. This is|$)",
        meaning="The checkpoint file is damaged, or is not what `torch.save` wrote. torch says: "
        "{what}.",
        fix=_OLDER,
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
        fix=_OLDER,
        example="RuntimeError: unexpected EOF, expected 500 more bytes. The file might be "
        "corrupted.",
        origin="made: torch.load of a cut file in the old format, torch 2.13",
        more_heads=("RuntimeError: unexpected EOF, expected",),
    ),
    Signature(
        id="checkpoint-magic-number",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Invalid magic number; corrupt file?",
        pattern=r"Invalid magic number; corrupt file\?",
        meaning="The file is no checkpoint of torch, or it is damaged.",
        fix="Check where it comes from: a page that was saved in its place, a pointer of Git LFS, "
        "or a broken copy.",
        example="RuntimeError: Invalid magic number; corrupt file?",
        origin="source: torch/serialization.py of torch 2.13",
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
        id="pickle-cut-off",
        code="failed-checkpoint",
        role=Role.SYMPTOM,
        needle="EOFError: Ran out of input",
        pattern=r"EOFError: Ran out of input",
        meaning="A file or a message that was unpickled is empty or cut off: a checkpoint that "
        "was not written to its end, or a parent process that ended.",
        fix="Look for an error of another process first; then check the size of the file in the "
        "traceback.",
        example="EOFError: Ran out of input",
        origin="source: Modules/_pickle.c of CPython 3.11",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="pickle-load-key",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="UnpicklingError: invalid load key",
        pattern=r"UnpicklingError: invalid load key, '(?P<key>[^']{1,8})'",
        meaning="The file is no checkpoint: often a pointer of Git LFS or a page of an error.",
        fix="Look at its first line (`head -c 100 FILE`) and download it again.",
        example="_pickle.UnpicklingError: invalid load key, '<'.",
        origin="source: Lib/pickle.py of CPython 3.11",
    ),
    Signature(
        id="storage-wrong-size",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="storage has wrong ",
        pattern=r"storage has wrong (?:byte )?size: expected (?P<wanted>-?\d{1,20}) got "
        r"(?P<got>-?\d{1,20})",
        meaning="The checkpoint is damaged: a tensor has {got} bytes instead of {wanted}.",
        fix=_OLDER,
        example="RuntimeError: storage has wrong byte size: expected 14345328 got 2359296",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="file-may-be-corrupted",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="unexpected EOF. The file might be corrupted",
        pattern=r"unexpected EOF\. The file might be corrupted",
        meaning="The checkpoint ends too early: it was written or copied only in part.",
        fix=_OLDER,
        example="RuntimeError: unexpected EOF. The file might be corrupted.",
        origin="recalled: torch/csrc/serialization.cpp of torch 1.0",
        weight=0.95,
    ),
    Signature(
        id="checkpoint-part-missing",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle=" file not found: ",
        pattern=r"enforce fail at inline_container\.cc:\d{1,6}\] ?\. file not found: "
        r"(?P<part>\S{1,200})",
        meaning="The checkpoint is damaged: its part {part} is missing. Several ranks may have "
        "written it at once.",
        fix=_OLDER,
        example="RuntimeError: [enforce fail at inline_container.cc:209] . file not found: "
        "archive/data/4711",
        origin="recalled: caffe2/serialize/inline_container.cc of torch 1.6",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="archive-not-zip",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="BadZipFile: File is not a zip file",
        pattern=r"BadZip[Ff]ile: File is not a zip file",
        meaning="The archive is damaged or was downloaded only in part.",
        fix=_OLDER,
        example="zipfile.BadZipFile: File is not a zip file",
        origin="made: zipfile.ZipFile of a text file, Python 3.11",
        weight=0.75,
    ),
    Signature(
        id="safetensors-header",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Error while deserializing header",
        pattern=r"SafetensorError: Error while deserializing header: (?P<why>\w{1,60})",
        meaning="A safetensors file is damaged or cut off ({why}): often a pointer of Git LFS, or "
        "a copy that was interrupted.",
        fix="Compare the file's size with the source and copy it again.",
        example="safetensors_rust.SafetensorError: Error while deserializing header: "
        "HeaderTooLarge",
        origin="source: safetensors of Hugging Face 0.4",
        weight=0.95,
    ),
    Signature(
        id="weights-unreadable",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Unable to load weights from pytorch checkpoint file",
        pattern=r"OSError: Unable to load weights from pytorch checkpoint file for",
        meaning="The file of the weights is damaged or cut off.",
        fix="Compare its size with the source and copy or download it again.",
        example="OSError: Unable to load weights from pytorch checkpoint file for '/models/a'",
        origin="recalled: transformers/modeling_utils.py of transformers 4.40",
        needle_tells=False,
    ),
    Signature(
        id="hdf5-damaged",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Unable to ",
        pattern=r"Unable to (?:synchronously )?open file \((?:file signature not found|truncated "
        r"file: |bad object header)",
        meaning="The HDF5 file is damaged: it was written or copied only in part.",
        fix=_OLDER,
        example="OSError: Unable to open file (truncated file: eof = 12, sblock->base_addr = 0, "
        "stored_eof = 20)",
        origin="recalled: h5py 3",
    ),
    Signature(
        id="checkpoint-newer-format",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="but the maximum supported version for reading is",
        pattern=r"Attempted to read a PyTorch file with version (?P<version>\d{1,6}), but the "
        r"maximum supported version for reading is (?P<most>\d{1,6})",
        meaning="The checkpoint has format {version}; this torch reads formats up to {most}.",
        fix="Load it with the torch that wrote it, or a newer one.",
        example="RuntimeError: Attempted to read a PyTorch file with version 3, but the maximum "
        "supported version for reading is 2. Your PyTorch installation may be too old.",
        origin="recalled: caffe2/serialize/inline_container.cc of torch 1.4",
        weight=0.95,
    ),
    Signature(
        id="checkpoint-is-zip",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle=" is a zip archive (did you mean ",
        pattern=r" is a zip archive \(did you mean to use torch\.jit\.load\(\)\?\)",
        meaning="The checkpoint is of a newer torch than the one that reads it, or a script "
        "module.",
        fix="Load it with a newer torch, or with `torch.jit.load`.",
        example="RuntimeError: best.pt is a zip archive (did you mean to use torch.jit.load()?)",
        origin="source: torch/serialization.py of torch 2.13",
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
        pattern=r"Unsupported global: GLOBAL (?P<object>[\w.]{1,200}) was not an allowed global "
        r"by default",
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
        id="checkpoint-class-missing",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="on <module '__main__'",
        pattern=r"Can't get attribute '(?P<name>\w{1,80})' on <module '__main__'",
        meaning="The checkpoint holds a pickled object of the class {name}, which this script "
        "does not define.",
        fix="Import that class before loading; save `state_dict()` instead of whole objects.",
        example="AttributeError: Can't get attribute 'Model' on <module '__main__' from 'test.py'>",
        origin="made: torch.load of a model whose class is in another script, torch 2.13",
        weight=0.8,
        needle_tells=False,
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
        id="checkpoint-cannot-be-opened",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle=" cannot be opened.",
        pattern=r"RuntimeError: File (?P<file>\S{1,300}) cannot be opened\.",
        meaning="The file {file} cannot be written: the folder is missing or not writable, or the "
        "disk is full.",
        fix="`ls -ld` of the folder, `df -h` and `quota -s`; let rank 0 make the folder first.",
        example="RuntimeError: File out/checkpoints/checkpoint_0.pt cannot be opened.",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="renamed-file-raced",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Error: [Errno ",
        pattern=r"\bFile(?:NotFound|Exists)Error: \[Errno (?:2|17)\] .{1,40}: '"
        r"(?P<file>[^']{1,300})' -> '(?P<target>[^']{1,300}\.(?:pt|pth|ckpt|tar|pth\.tar|"
        r"safetensors|bin|h5))'",
        meaning="The checkpoint {target} could not be renamed or linked, usually because several "
        "processes do it at once.",
        fix="Let only global rank 0 save (`RANK`, not `LOCAL_RANK`), with a barrier after it.",
        example="FileNotFoundError: [Errno 2] No such file or directory: 'run1/tmp.pth.tar' -> "
        "'run1/last.pth.tar'",
        origin="source: os.rename of CPython 3.11",
        weight=0.8,
    ),
    Signature(
        id="hub-file-missing",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Error no file named ",
        pattern=r"Error no file named .{1,200}? found in directory",
        meaning="The folder holds no weights.",
        fix=_PATH,
        example="OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, "
        "model.ckpt.index or flax_model.msgpack found in directory ./out.",
        origin="recalled: transformers/modeling_utils.py of Transformers 4",
        weight=0.85,
    ),
    Signature(
        id="hub-checkpoint-missing",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Can't find a valid checkpoint at ",
        pattern=r"Can't find a valid checkpoint at (?P<path>\S{1,300})",
        meaning="There is no checkpoint to resume from at {path}.",
        fix=_PATH,
        example="ValueError: Can't find a valid checkpoint at ./out/checkpoint-500",
        origin="recalled: transformers/trainer.py of Transformers 4",
        weight=0.85,
    ),
    Signature(
        id="deepspeed-folder-missing",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Error: Directory '",
        pattern=r"FileNotFoundError: Directory '(?P<path>[^']{1,300})' doesn't exist",
        meaning="There is no checkpoint folder {path}.",
        fix=_PATH,
        example="FileNotFoundError: Directory './checkpoint-500' doesn't exist",
        origin="source: deepspeed/utils/zero_to_fp32.py of DeepSpeed 0.16",
        weight=0.85,
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
        "otherwise load the checkpoint before it.",
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
    ),
)
