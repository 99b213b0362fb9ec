"""What the system and Python say of files, limits and libraries."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_DISK = "`df -h` and `df -i` show where; remove old checkpoints and caches, or write elsewhere."
_TASKS = (
    "`ulimit -u`, the cgroup's pids.max (`docker run --pids-limit`) and the user's processes "
    "(`ps -eLf | wc -l`): raise the limit, or start fewer workers and threads "
    "(OMP_NUM_THREADS=1 for workers)."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="errno-disk-full",
        code="failed-disk-full",
        role=Role.CAUSE,
        needle="No space left on device",
        pattern=r"\[Errno 28\] No space left on device(?:: "
        r"'(?P<file>(?!/dev/shm/)[^']{1,300})'|(?!: '))"
        r"|: (?:write error|error writing '[^']{1,300}'|cannot create \S{1,300}): "
        r"No space left on device",
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
        pattern=r"(?:\[Errno 122\]|: (?:write|write error|cannot create \S{1,300}):) "
        r"Disk quota exceeded",
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
        id="errno-open-files",
        code="failed-open-files",
        role=Role.CAUSE,
        needle="Too many open files",
        pattern=r"\[Errno (?:24|23)\] Too many open files(?: in system)?"
        r"(?:: '(?P<file>[^']{1,300})')?",
        meaning="The process has as many files open as it may.",
        fix="`ulimit -n 65536` before the start. With many data-loader workers also "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`.",
        example="OSError: [Errno 24] Too many open files: '/dev/null'",
        origin="made: 50 files opened under `ulimit -n 20`, Python 3.11",
        weight=0.95,
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
        id="errno-read-only",
        code="failed-permission",
        role=Role.CAUSE,
        needle="Read-only file system",
        pattern=r"\[Errno 30\] Read-only file system(?:: '(?P<file>[^']{1,300})')?",
        meaning="The file system can only be read: mounted so, or the kernel made it so after disk "
        "errors.",
        fix="Write elsewhere. `dmesg` and `findmnt -T PATH` tell why it is read-only.",
        example="OSError: [Errno 30] Read-only file system: '/data/out/z'",
        origin="made: a file opened for writing on a read-only tmpfs, Python 3.11",
        needle_tells=False,
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
        pattern=r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable"
        r"|: fork: (?!retry: )Resource temporarily unavailable",
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
    Signature(
        id="module-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle="ModuleNotFoundError: No module named '",
        pattern=r"^ModuleNotFoundError: No module named '(?P<module>[\w.]{1,200})'",
        meaning="The package {module} is not installed in the environment of this process.",
        fix="Install it there: `python -m pip install ...` with the python that runs the job; on a "
        "cluster on every node.",
        example="ModuleNotFoundError: No module named 'flash_attn'",
        origin="made: import of a package that is not there, Python 3.11",
        weight=0.8,
    ),
    Signature(
        id="library-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle=": cannot open shared object file: No such",
        pattern=r"^(?:ImportError|OSError): (?P<library>[\w.+-]{1,120}): cannot open shared object "
        r"file: No such file or directory",
        meaning="The library {library} is not on this machine, or not where it is looked for.",
        fix="`ldconfig -p | grep` for it; set LD_LIBRARY_PATH or load the module. A CUDA library: "
        "the package was built for another CUDA version.",
        example="OSError: libcudart.so.11.0: cannot open shared object file: No such file or "
        "directory",
        origin="made: ctypes.CDLL of a library that is not there, Python 3.11",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="symbol-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle=": undefined symbol: ",
        pattern=r"^ImportError: (?P<library>\S{1,300}): undefined symbol: (?P<symbol>\w{1,300})",
        meaning="{library} was built against another version of the libraries that it uses, mostly "
        "another torch.",
        fix="Build or install it again for the torch that is installed: `pip install "
        "--no-build-isolation --force-reinstall`.",
        example="ImportError: /venv/lib/python3.11/site-packages/flash_attn_2_cuda.so: undefined "
        "symbol: _ZN3c104cuda9SetDeviceEi",
        origin="made: import of a module with a symbol that is nowhere, Python 3.11",
        weight=0.9,
    ),
    Signature(
        id="glibc-too-old",
        code="failed-exception",
        role=Role.CAUSE,
        needle="' not found (required by ",
        pattern=r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found \(required by "
        r"(?P<library>[^)]{1,300})\)",
        meaning="{library} needs {version}, which is newer than this system's.",
        fix="Use a container or conda environment with a newer system, or an older build of it. "
        "For GLIBCXX: `conda install -c conda-forge libstdcxx-ng` and LD_LIBRARY_PATH.",
        example="ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found "
        "(required by /venv/lib/python3.11/site-packages/flash_attn_2_cuda.so)",
        origin="source: elf/dl-version.c of glibc 2.36",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="mkl-openmp-twice",
        code="failed-exception",
        role=Role.CAUSE,
        needle="OMP: Error #15: ",
        pattern=r"OMP: Error #15: Initializing (?P<library>\S{1,200}), but found "
        r"(?P<other>\S{1,200}) already initialized",
        meaning="Two OpenMP libraries were loaded, and one of them ended the process.",
        fix="Install numpy and torch from one source (all conda or all pip); "
        "KMP_DUPLICATE_LIB_OK=TRUE only hides it.",
        example="OMP: Error #15: Initializing libiomp5.so, but found libomp.so already "
        "initialized.",
        origin="source: i18n/en_US.txt of LLVM's OpenMP runtime 17",
    ),
    Signature(
        id="recursion-limit",
        code="failed-exception",
        role=Role.CAUSE,
        needle="RecursionError: maximum recursion depth",
        pattern=r"^RecursionError: maximum recursion depth exceeded",
        meaning="Functions called each other without end.",
        fix="The repeated frames of the traceback show the circle.",
        example="RecursionError: maximum recursion depth exceeded",
        origin="made: a function that calls itself, Python 3.11",
        weight=0.8,
    ),
    Signature(
        id="errno-not-permitted",
        code="failed-permission",
        role=Role.CAUSE,
        needle="[Errno 1] Operation not permitted",
        pattern=r"PermissionError: \[Errno 1\] Operation not permitted"
        r"(?:: '(?P<file>[^']{1,300})')?",
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
        id="errno-shm-full",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="No space left on device: '/dev/shm/",
        pattern=r"\[Errno 28\] No space left on device: '(?P<file>/dev/shm/[^']{1,300})'",
        meaning="/dev/shm is full: {file} could not be written.",
        fix="`df -h /dev/shm`; `docker run --shm-size=16g`, `--ipc=host`, or fewer data-loader "
        "workers.",
        example="OSError: [Errno 28] No space left on device: '/dev/shm/torch_4711_12'",
        origin="made: a write to a full /dev/shm with Python 3.11",
        weight=0.95,
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
        needle_tells=False,
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
        "= "
        "3, errno = 28, error message = 'No space left on device')",
        origin="recalled: src/H5FDsec2.c of HDF5 1.12",
        weight=0.95,
    ),
    Signature(
        id="process-pool-broken",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="BrokenProcessPool: A process in the process pool",
        pattern=r"BrokenProcessPool: A process in the process pool was terminated abruptly",
        meaning="A worker of a process pool ended without an exception: mostly it was killed when "
        "memory ran out.",
        fix="`dmesg -T | grep -i 'killed process'`; use fewer workers.",
        example="concurrent.futures.process.BrokenProcessPool: A process in the process pool was "
        "terminated abruptly while the future was running or pending.",
        origin="source: concurrent/futures/process.py of CPython 3.11",
        weight=0.6,
    ),
)
