"""What the operating system refuses: disk space, open files, permissions, processes and threads."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_DISK = "`df -h` and `df -i` show where; remove old checkpoints and caches, or write elsewhere."
_ROOM = (
    "Make room in the checkpoint's folder (`df -h` and `df -i` show it, `quota -s` a quota): "
    "delete old checkpoints, or keep only the last few."
)
_TASKS = (
    "`ulimit -u`, the cgroup's pids.max (`docker run --pids-limit`) and the user's processes (`ps "
    "-eLf | wc -l`): raise the limit, or start fewer workers and threads (OMP_NUM_THREADS=1 for "
    "workers)."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="errno-disk-full",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="No space left on device",
        pattern=r"\[Errno 28\] No space left on device(?:: '(?P<file>(?!/dev/shm/)[^']{1,300})'|"
        r"(?!: '))|: (?:write error|error writing '[^']{1,300}'|cannot create \S{1,300}): No "
        r"space left on device",
        meaning="A disk is full, or its inodes are used up.",
        fix=_DISK,
        example="OSError: [Errno 28] No space left on device",
        origin="made: a write to a full tmpfs with Python 3.11",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="errno-quota",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="Disk quota exceeded",
        pattern=r"(?:\[Errno 122\]|: (?:write|write error|cannot create \S{1,300}):) Disk quota "
        r"exceeded",
        meaning="Your share of the disk is used up.",
        fix="`quota -s` (or `lfs quota -u $USER /scratch`) shows it; remove old files, or move "
        "caches (HF_HOME, TORCH_HOME, XDG_CACHE_HOME) elsewhere.",
        example="OSError: [Errno 122] Disk quota exceeded",
        origin="source: strerror(122) of glibc 2.36, as Python 3.11 prints it",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="errno-file-too-large",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="[Errno 27] File too large",
        pattern=r"\[Errno 27\] File too large",
        meaning="A file reached the largest size that is allowed (`ulimit -f`, or the file "
        "system's).",
        fix="Raise `ulimit -f`, or write the checkpoint in parts.",
        example="OSError: [Errno 27] File too large",
        origin="made: 10 MB written under `ulimit -f 100`, Python 3.11",
        needle_tells=False,
    ),
    Signature(
        id="storage-full",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="kind: StorageFull",
        pattern=r"\{ code: 28, kind: StorageFull, message: ",
        meaning="A disk is full: a file of safetensors could not be written.",
        fix=_DISK,
        example="SafetensorError: Error while serializing: IoError(Os { code: 28, kind: "
        'StorageFull, message: "No space left on device" })',
        origin="recalled: std::io::Error of Rust 1.83, as safetensors prints it",
        weight=0.95,
    ),
    Signature(
        id="tf-file-no-space",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="; No space left on device",
        pattern=r"(?P<file>\S{1,300}); No space left on device",
        meaning="A disk is full: {file} could not be written.",
        fix=_DISK,
        example="ResourceExhaustedError: /data/run/model.ckpt-1000.tempstate; No space left on "
        "device",
        origin="recalled: the POSIX file system of TensorFlow 2.12",
        weight=0.95,
    ),
    Signature(
        id="hdf5-no-space",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="errno = 28, error message",
        pattern=r"errno = 28, error message = 'No space left on device'",
        meaning="A disk is full: a file of HDF5 could not be written.",
        fix=_DISK,
        example="OSError: Can't write data (file write failed: filename = 'm.h5', file descriptor "
        "= 3, errno = 28, error message = 'No space left on device')",
        origin="recalled: src/H5FDsec2.c of HDF5 1.12",
        weight=0.95,
    ),
    Signature(
        id="write-failed-errno",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="write(): fd ",
        pattern=r"\bwrite\(\): fd \d{1,7} failed with (?P<what>Input/output error|Disk quota "
        r"exceeded|File too large|Stale file handle)",
        meaning="Writing a checkpoint failed: {what}.",
        fix="`df -h`, `quota -s` and `dmesg -T` on that host; write to another file system.",
        example="RuntimeError: write(): fd 29 failed with Input/output error",
        origin="source: torch/csrc/serialization.cpp of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="stream-write-failed",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="iostream error",
        pattern=r"basic_ios::clear: iostream error",
        meaning="Writing a file failed: usually the disk or the quota is full.",
        fix="`df -h` and `quota -s` on that host.",
        example="RuntimeError: basic_ios::clear: iostream error",
        origin="recalled: libstdc++ of GCC 12",
        weight=0.7,
    ),
    Signature(
        id="legacy-write-short",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle=" requested and ",
        pattern=r"\b\d{1,15} requested and \d{1,15} written",
        meaning="Fewer bytes were written than asked for: the disk or the quota is full.",
        fix="`df -h` and `quota -s` on that host.",
        example="OSError: 1234567 requested and 0 written",
        origin="recalled: NumPy 1.20's tofile",
    ),
    Signature(
        id="safetensors-no-space",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="No space left on device (os error",
        pattern=r"No space left on device \(os error 28\)",
        meaning="The disk is full.",
        fix="`df -h` on that host; keep fewer checkpoints.",
        example="SafetensorError: Error while serializing: I/O error: No space left on device (os "
        "error 28)",
        origin="recalled: safetensors 0.5",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="tool-no-space",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle=": No space left on device",
        pattern=r"^(?:cp|mv|tar|rsync|tee|dd|cat|write|mkdir|bash|sh|wget|curl|unzip|echo|touch|"
        r"git|conda|pip|tmux)\b.{0,200}?: No space left on device\s*$",
        meaning="The disk is full.",
        fix="`df -h` and `df -i` on that host.",
        example="tee: train.log: No space left on device",
        origin="made: tee to a full file system, coreutils 9",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="quota-exceeded-bare",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="Disk quota exceeded",
        pattern=r"^(?:\S{1,200}: ){0,2}Disk quota exceeded\s*$",
        meaning="The disk quota of the user or group is used up.",
        fix="`quota -s` shows it; remove old checkpoints or write elsewhere.",
        example="Disk quota exceeded",
        origin="recalled: the error texts of glibc 2.36",
        weight=0.8,
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
        id="errno-open-files",
        code="failed-open-files",
        role=Role.CAUSE,
        needle="Too many open files",
        pattern=r"\[Errno (?:24|23)\] Too many open files(?: in system)?(?:: '"
        r"(?P<file>[^']{1,300})')?",
        meaning="The process has as many files open as it may.",
        fix="`ulimit -n 65536` before the start. With many data-loader workers also "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`.",
        example="OSError: [Errno 24] Too many open files: '/dev/null'",
        origin="made: 50 files opened under `ulimit -n 20`, Python 3.11",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="open-files-elsewhere",
        code="failed-open-files",
        role=Role.CAUSE,
        needle="oo many open files",
        pattern=r"\bCall to \w{1,30} failed ?: Too many open files|; Too many open files\s*$|"
        r"errno: 24 - Too many open files",
        meaning="The process or the host may open no more files.",
        fix="`ulimit -n 65536` before the job, or "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`.",
        example="ResourceExhaustedError: /data/train-0007.tfrecord; Too many open files",
        origin="recalled: tensorflow/core/platform of TensorFlow 2",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="errno-permission",
        code="failed-permission",
        role=Role.CAUSE,
        needle="[Errno 13] Permission denied",
        pattern=r"PermissionError: \[Errno 13\] Permission denied(?:: '(?P<file>[^']{1,300})')?",
        meaning="A file may not be read or written by this user.",
        fix="`ls -ld` on the path and its folders, and `id`: change the owner or mode, or the "
        "path. In a container look at `--user` and the volume's owner.",
        example="PermissionError: [Errno 13] Permission denied: '/data/ckpt/last.pt'",
        origin="source: PermissionError of Python 3.11",
        needle_tells=False,
    ),
    Signature(
        id="errno-not-permitted",
        code="failed-permission",
        role=Role.CAUSE,
        needle="[Errno 1] Operation not permitted",
        pattern=r"PermissionError: \[Errno 1\] Operation not permitted(?:: '"
        r"(?P<file>[^']{1,300})')?",
        meaning="The system refused an operation on a file or process to this user.",
        fix="Look at the owner and the flags of the file (`ls -l`, `lsattr`), and at the mount: "
        "some network file systems refuse locks and changes of owner. Point caches elsewhere "
        "(HF_HOME, TORCH_HOME).",
        example="PermissionError: [Errno 1] Operation not permitted: '/data/cache/train.lock'",
        origin="made: chown of a file of another user, Python 3.11",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="errno-read-only",
        code="failed-permission",
        role=Role.CAUSE,
        needle="Read-only file system",
        pattern=r"\[Errno 30\] Read-only file system(?:: '(?P<file>[^']{1,300})')?",
        meaning="The file system can only be read: mounted so, or the kernel made it so after "
        "disk errors.",
        fix="Write elsewhere. `dmesg` and `findmnt -T PATH` show why it is read-only.",
        example="OSError: [Errno 30] Read-only file system: '/data/out/z'",
        origin="made: a file opened for writing on a read-only tmpfs, Python 3.11",
        needle_tells=False,
    ),
    Signature(
        id="permission-bare",
        code="failed-permission",
        role=Role.SYMPTOM,
        needle="ermission denied",
        pattern=r"^(?:RuntimeError: Permission denied[\",]{0,3}|-?(?:bash|sh): (?:line \d{1,6}: "
        r")?\S{1,300}: Permission denied|mkdir: .{1,300}: Permission denied|"
        r".{0,80}PermissionDeniedError: .{1,300}Permission denied|docker: Got permission denied "
        r"while trying to connect.{0,200})\s*$",
        meaning="A file, folder or program may not be used by this user.",
        fix="`ls -l` and `id` on that host; `chmod +x` for a script.",
        example="-bash: ./train.sh: Permission denied",
        origin="made: a script without the executable bit, bash 5.2",
        weight=0.75,
    ),
    Signature(
        id="errno-input-output",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Input/output error",
        pattern=r"OSError: \[Errno 5\] Input/output error(?:: '(?P<file>[^']{1,300})')?",
        meaning="A disk or network storage failed to read or write.",
        fix="`dmesg` names the disk; for network storage ask its administrator. If it was the "
        "output: the terminal or pipe is gone.",
        example="OSError: [Errno 5] Input/output error: '/data/train/shard-0007.tar'",
        origin="source: strerror(5) of glibc 2.36, as Python 3.11 prints it",
        needle_tells=False,
    ),
    Signature(
        id="errno-stale",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Stale file handle",
        pattern=r"\[Errno 116\] Stale file handle(?:: '(?P<file>[^']{1,300})')?",
        meaning="A file on network storage was removed or replaced while it was open.",
        fix="Do not rewrite the data set or code while the job runs; remount if it stays so.",
        example="OSError: [Errno 116] Stale file handle: '/data/train/shard-0007.tar'",
        origin="source: strerror(116) of glibc 2.36, as Python 3.11 prints it",
        needle_tells=False,
    ),
    Signature(
        id="no-new-thread",
        code="failed-exception",
        role=Role.CAUSE,
        needle="can't start new thread",
        pattern=r"RuntimeError: can't start new thread",
        meaning="The process may start no further thread: a limit of threads or memory is reached.",
        fix=_TASKS,
        example="RuntimeError: can't start new thread",
        origin="made: nine threads under pids.max 3, Python 3.11",
        needle_tells=False,
    ),
    Signature(
        id="no-new-process",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Resource temporarily unavailable",
        pattern=r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable|: fork: "
        r"(?!retry: )Resource temporarily unavailable",
        meaning="The system refused to start a further process.",
        fix=_TASKS,
        example="BlockingIOError: [Errno 11] Resource temporarily unavailable",
        origin="made: nine processes under pids.max 3, Python 3.11",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="openmp-no-thread",
        code="failed-exception",
        role=Role.CAUSE,
        needle="libgomp: Thread creation failed",
        pattern=r"libgomp: Thread creation failed: (?P<reason>.{1,100})",
        meaning="OpenMP could not start its threads ({reason}).",
        fix=_TASKS,
        example="libgomp: Thread creation failed: Resource temporarily unavailable",
        origin="made: sixteen threads of torch under pids.max 3",
    ),
    Signature(
        id="openblas-no-thread",
        code="failed-exception",
        role=Role.CAUSE,
        needle="blas_thread_init: pthread_create failed",
        pattern=r"OpenBLAS blas_thread_init: pthread_create failed for thread (?P<thread>\d+) of "
        r"(?P<threads>\d+)",
        meaning="NumPy's OpenBLAS could not start its {threads} threads.",
        fix="OPENBLAS_NUM_THREADS=1. " + _TASKS,
        example="OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource "
        "temporarily unavailable",
        origin="made: import numpy under pids.max 1",
        weight=0.8,
    ),
)
