"""Host memory or /dev/shm that ran out, as the kernel, Python and torch report it."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LESS_HOST_MEMORY = (
    "Use fewer data-loader workers and a smaller prefetch, do not keep the data set in every rank, "
    "load checkpoints with `mmap=True`; or ask for more memory."
)
_LARGER_SHM = (
    "Enlarge /dev/shm: `docker run --shm-size=16g` or `--ipc=host`; in Kubernetes an emptyDir with "
    "`medium: Memory` on /dev/shm. Fewer workers or a smaller prefetch also help."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="host-oom-killed",
        code="oom-host",
        role=Role.CAUSE,
        needle="Out of memory: Killed process",
        pattern=r"\bOut of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]{1,64})\)(?: "
        r"total-vm:\d+kB, anon-rss:(?P<anon_kb>\d+)kB)?",
        meaning="The machine ran out of memory and the kernel killed {process} (pid {pid}).",
        fix=_LESS_HOST_MEMORY,
        example="Out of memory: Killed process 21934 (python) total-vm:58217544kB, "
        "anon-rss:50331648kB, file-rss:1240kB, shmem-rss:0kB, UID:1000 pgtables:98304kB "
        "oom_score_adj:0",
        origin="source: mm/oom_kill.c of Linux 6.1",
        weight=0.85,
    ),
    Signature(
        id="host-oom-kill-old",
        code="oom-host",
        role=Role.CAUSE,
        needle="or sacrifice child",
        pattern=r"\b[Oo]ut of memory: Kill process (?P<pid>\d+) \((?P<process>[^)]{1,64})\) score "
        r"\d+ or sacrifice child",
        meaning="Memory ran out and the kernel killed {process} (pid {pid}).",
        fix=_LESS_HOST_MEMORY,
        example="Out of memory: Kill process 21934 (python) score 901 or sacrifice child",
        origin="source: mm/oom_kill.c of Linux 4.18",
        weight=0.85,
    ),
    Signature(
        id="cgroup-oom-killed",
        code="oom-host",
        role=Role.CAUSE,
        needle="Memory cgroup out of memory: Killed process",
        pattern=r"Memory cgroup out of memory: Killed process (?P<pid>\d+) \("
        r"(?P<process>[^)]{1,64})\)(?: total-vm:\d+kB, anon-rss:(?P<anon_kb>\d+)kB)?",
        meaning="The container or job reached its memory limit (not the machine's), and the "
        "kernel killed {process} (pid {pid}).",
        fix="Raise the limit (`--mem`, `docker run --memory`, Kubernetes `limits.memory`). "
        + _LESS_HOST_MEMORY,
        example="Memory cgroup out of memory: Killed process 8931 (python3) total-vm:71048kB, "
        "anon-rss:61184kB, file-rss:6624kB, shmem-rss:0kB, UID:0 pgtables:184kB oom_score_adj:0",
        origin="made: a process that outgrew memory.max of its cgroup, kernel log of Linux 6",
    ),
    Signature(
        id="cgroup-oom-constraint",
        code="oom-host",
        role=Role.CAUSE,
        needle="oom-kill:constraint=CONSTRAINT_",
        pattern=r"oom-kill:constraint=CONSTRAINT_(?P<constraint>[A-Z_]+),.{0,2000}?,task="
        r"(?P<process>[^,]{1,64}),pid=(?P<pid>\d+)",
        meaning="The kernel killed {process} (pid {pid}) for memory. MEMCG: the limit of a "
        "container or job; NONE: the machine's memory. Here: {constraint}.",
        fix=_LESS_HOST_MEMORY,
        example="oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job_7,task_memcg=/job_7,task=python3,pid=8931,uid=0",
        origin="made: a process that outgrew memory.max of its cgroup, kernel log of Linux 6",
    ),
    Signature(
        id="host-oom-invoked",
        code="oom-host",
        role=Role.CAUSE,
        needle=" invoked oom-killer: ",
        pattern=r"(?:^|\s)(?P<process>\S{1,64}) invoked oom-killer: gfp_mask=",
        meaning="{process} asked for memory that was not there, so the kernel looked for a "
        "process to kill. The next lines name the one it took.",
        fix=_LESS_HOST_MEMORY,
        example="python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        origin="made: a process that outgrew memory.max of its cgroup, kernel log of Linux 6",
        weight=0.7,
    ),
    Signature(
        id="python-memory-error",
        code="oom-host",
        role=Role.CAUSE,
        needle="MemoryError",
        pattern=r"^(?:builtins\.)?MemoryError(?::|$)",
        meaning="Python could not get the memory that it asked for: the machine or a limit "
        "(`ulimit -v`) is exhausted.",
        fix=_LESS_HOST_MEMORY,
        example="MemoryError",
        origin="made: bytearray(10**9) under `ulimit -v 400000`",
    ),
    Signature(
        id="numpy-memory-error",
        code="oom-host",
        role=Role.CAUSE,
        needle="Unable to allocate ",
        pattern=r"MemoryError: Unable to allocate (?P<size>[\d.]+ ?[KMGTPE]?i?B|\d+ bytes) for an "
        r"array with shape (?P<shape>\([^)]{0,200}\))",
        meaning="NumPy asked for {size} of host memory for an array of shape {shape} and did not "
        "get it.",
        fix="Read the data in pieces (`np.memmap`, `np.load(mmap_mode='r')`) or with a smaller "
        "dtype. Every rank and every worker holds its own copy.",
        example="numpy._core._exceptions._ArrayMemoryError: Unable to allocate 72.8 TiB for an "
        "array with shape (1000000, 10000000) and data type float64",
        origin="made: numpy.ones((10**6, 10**7)) with numpy 2.4",
        needle_tells=False,
    ),
    Signature(
        id="torch-host-allocation",
        code="oom-host",
        role=Role.CAUSE,
        needle="DefaultCPUAllocator: ",
        pattern=r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to "
        r"allocate (?P<bytes>\d+) bytes",
        meaning="torch asked for {bytes} bytes of host memory (not of a GPU) and did not get them.",
        fix=_LESS_HOST_MEMORY,
        example="RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
        "can't allocate memory: you tried to allocate 40000000000000 bytes. Error code 12 (Cannot "
        "allocate memory)",
        origin="made: torch.ones((10**6, 10**7)) with torch 2.13",
        more_heads=("DefaultCPUAllocator: can't allocate memory",),
    ),
    Signature(
        id="bad-alloc",
        code="oom-host",
        role=Role.CAUSE,
        needle="std::bad_alloc",
        pattern=r"(?:after throwing an instance of '|what\(\):\s+|(?:Error|Exception): |"
        r"^)std::bad_alloc\b(?! )",
        meaning="A C++ library could not get host memory.",
        fix=_LESS_HOST_MEMORY,
        example="terminate called after throwing an instance of 'std::bad_alloc'",
        origin="made: a C++ program that asked for 8 PiB",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="errno-no-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="Cannot allocate memory",
        pattern=r"\[Errno 12\] Cannot allocate memory|(?:^|: )fork: (?:retry: )?Cannot allocate "
        r"memory",
        meaning="The system refused memory to a call, often to fork: a large process needs room "
        "for a copy of itself, or a limit is reached.",
        fix="Start workers before the data is loaded, or with "
        "`multiprocessing_context='forkserver'`; check `ulimit -v` and "
        "vm.overcommit_memory. " + _LESS_HOST_MEMORY,
        example="OSError: [Errno 12] Cannot allocate memory",
        origin="made: OSError(12) as Python 3.11 prints it",
        needle_tells=False,
    ),
    Signature(
        id="shm-full-torch",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="No space left on device (28)",
        pattern=r"(?:unable to allocate shared memory ?\(shm\) for file|unable to write to file) "
        r"</torch_\S{1,80}>: No space left on device \(28\)",
        meaning="/dev/shm is full. Data-loader workers hand their batches over through it.",
        fix=_LARGER_SHM,
        example="RuntimeError: unable to allocate shared memory(shm) for file "
        "</torch_11258_1837974568_0>: No space left on device (28)",
        origin="made: Tensor.share_memory_() on a /dev/shm of 1 MB with torch 2.13",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="shm-object-refused",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="unable to open shared memory object",
        pattern=r"unable to open shared memory object <(?P<object>[^>]{1,120})> in (?:read-write|"
        r"read-only) mode: (?:No space left on device|Cannot allocate memory)",
        meaning="A shared-memory object could not be made: /dev/shm has no room.",
        fix=_LARGER_SHM,
        example="RuntimeError: unable to open shared memory object </torch_4711_1204_0> in "
        "read-write mode: No space left on device (28)",
        origin="source: aten/src/ATen/MapAllocator.cpp of torch 2.13",
    ),
    Signature(
        id="shm-object-no-descriptor",
        code="failed-open-files",
        role=Role.CAUSE,
        needle="mode: Too many open files",
        pattern=r"unable to open shared memory object <(?P<object>[^>]{1,120})> in (?:read-write|"
        r"read-only) mode: Too many open files",
        meaning="A shared-memory object cannot be opened: the process has no file descriptor "
        "left. Each tensor that a data-loader worker hands over takes one.",
        fix="`ulimit -n 65536` before the start, or "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`; do not keep the tensors of "
        "many batches.",
        example="RuntimeError: unable to open shared memory object </torch_9127_3301_77> in "
        "read-write mode: Too many open files (24)",
        origin="source: aten/src/ATen/MapAllocator.cpp of torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="shm-object-gone",
        code="shm-exhausted",
        role=Role.SYMPTOM,
        needle="mode: No such file or directory",
        pattern=r"unable to open shared memory object <(?P<object>[^>]{1,120})> in (?:read-write|"
        r"read-only) mode: No such file or directory",
        meaning="The shared-memory object {object} cannot be opened: the process that made it "
        "ended, or somebody emptied /dev/shm.",
        fix="Look for the first data-loader worker or rank that ended. `df -h /dev/shm` shows "
        "whether it is full.",
        example="RuntimeError: unable to open shared memory object </torch_9127_3301_78> in "
        "read-write mode: No such file or directory (2)",
        origin="source: aten/src/ATen/MapAllocator.cpp of torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="kernel-killed-process",
        code="oom-host",
        role=Role.CAUSE,
        needle="Killed process ",
        pattern=r"(?<!of memory: )\bKilled process (?P<pid>\d{1,10}) \("
        r"(?P<program>[^)]{1,64})\),? (?:UID \d{1,10},? )?total-vm:",
        meaning="The kernel killed process {pid} ({program}) because memory ran out.",
        fix=_LESS_HOST_MEMORY,
        example="Killed process 4711 (python) total-vm:58217544kB, anon-rss:50331648kB, "
        "file-rss:0kB",
        origin="recalled: mm/oom_kill.c of Linux 4",
        weight=0.95,
    ),
    Signature(
        id="kernel-reaped-process",
        code="oom-host",
        role=Role.CAUSE,
        needle="oom_reaper: reaped process ",
        pattern=r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<program>[^)]{1,64})\)",
        meaning="The kernel killed process {pid} ({program}) because memory ran out.",
        fix=_LESS_HOST_MEMORY,
        example="oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB",
        origin="recalled: mm/oom_kill.c of Linux 5",
        weight=0.95,
    ),
    Signature(
        id="cgroup-limit-killed",
        code="oom-host",
        role=Role.CAUSE,
        needle=" killed as a result of limit of ",
        pattern=r"\bTask in \S{1,300} killed as a result of limit of \S{1,300}",
        meaning="A container reached its memory limit and the kernel killed a process of it.",
        fix=_LESS_HOST_MEMORY,
        example="Task in /docker/1a2b killed as a result of limit of /docker/1a2b",
        origin="recalled: mm/memcontrol.c of Linux 4",
        weight=0.95,
    ),
    Signature(
        id="systemd-oom-pressure",
        code="oom-host",
        role=Role.CAUSE,
        needle=" due to memory ",
        pattern=r"systemd-oomd(?:\[\d{1,10}\])?: Killed \S{1,200} due to memory (?:pressure|used)",
        meaning="systemd's out-of-memory daemon killed the session or service of the job.",
        fix=_LESS_HOST_MEMORY,
        example="systemd-oomd[812]: Killed /user.slice/user-1000.slice/session-3.scope due to "
        "memory pressure for /user.slice being 71.52% > 50.00% for > 20s with reclaim activity",
        origin="recalled: src/oom/oomd-manager.c of systemd 250",
        needle_tells=False,
    ),
    Signature(
        id="systemd-oom-killed",
        code="oom-host",
        role=Role.CAUSE,
        needle="of this unit has been killed by the OOM killer",
        pattern=r"A process of this unit has been killed by the OOM killer",
        meaning="The kernel killed a process of the session or service of the job when memory ran "
        "out.",
        fix=_LESS_HOST_MEMORY,
        example="user@1000.service: A process of this unit has been killed by the OOM killer.",
        origin="recalled: src/core/unit.c of systemd 250",
    ),
    Signature(
        id="jvm-heap-exhausted",
        code="oom-host",
        role=Role.CAUSE,
        needle="java.lang.OutOfMemoryError: ",
        pattern=r"java\.lang\.OutOfMemoryError: (?P<what>[A-Z][\w ]{2,40})",
        meaning="A Java process ran out of memory ({what}).",
        fix="Raise the heap (`spark.executor.memory`, `spark.driver.memory`, `-Xmx`).",
        example="java.lang.OutOfMemoryError: Java heap space",
        origin="recalled: the messages of OpenJDK 11",
        needle_tells=False,
    ),
    Signature(
        id="windows-paging-file",
        code="oom-host",
        role=Role.CAUSE,
        needle="The paging file is too small for this operation to complete",
        pattern=r"The paging file is too small for this operation to complete",
        meaning="Windows ran out of memory that it can promise: each worker process loads its own "
        "copy of the CUDA libraries.",
        fix="Enlarge the paging file, or use fewer data-loader workers (`num_workers=0`).",
        example="OSError: [WinError 1455] The paging file is too small for this operation to "
        "complete.",
        origin="recalled: the system messages of Windows 10",
    ),
    Signature(
        id="torch-host-allocation-old",
        code="oom-host",
        role=Role.CAUSE,
        needle="Torch: not enough memory: you tried to allocate",
        pattern=r"Torch: not enough memory: you tried to allocate (?P<size>\d{1,9} ?[KMG]?B)",
        meaning="Allocating {size} of host memory failed.",
        fix=_LESS_HOST_MEMORY,
        example="RuntimeError: $ Torch: not enough memory: you tried to allocate 4GB. Buy new RAM!",
        origin="recalled: aten/src/TH/THGeneral.cpp of torch 1.0",
    ),
    Signature(
        id="shm-map-refused",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="unable to mmap ",
        pattern=r"unable to mmap \d{1,15} bytes from file </torch_\w{1,60}>",
        meaning="No shared memory is left for the tensors of data-loader workers.",
        fix="`docker run --shm-size=16g` or `--ipc=host`; fewer workers.",
        example="RuntimeError: unable to mmap 8 bytes from file </torch_4711_2>: Cannot allocate "
        "memory (12)",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="shm-allocation-refused",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="unable to allocate shared memory(shm) for ",
        pattern=r"unable to allocate shared memory\(shm\) for file </torch_\w{1,60}>: (?!No space "
        r"left)",
        meaning="No shared memory is left for the tensors of data-loader workers.",
        fix="`docker run --shm-size=16g` or `--ipc=host`; fewer workers.",
        example="RuntimeError: unable to allocate shared memory(shm) for file </torch_4711_1>: "
        "Success (0)",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="shm-write",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="unable to write to file </torch_",
        pattern=r"RuntimeError: unable to (?:write to file|mmap \d{1,20} bytes from file) </torch_",
        meaning="A tensor could not be put into shared memory: /dev/shm is full.",
        fix="Start the container with `--shm-size=16g` or `--ipc=host`, or use fewer loader "
        "workers.",
        example="RuntimeError: unable to write to file </torch_812_4471>",
        origin="source: aten/src/ATen/MapAllocator.cpp of torch 1.13",
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
)
