"""How native code reports its own crash: the C library, stack printers, mpirun and the kernel."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_STACK = (
    "Run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash, and `ulimit -c "
    "unlimited` to keep a core file for gdb."
)


def _crash(
    name: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str = _STACK,
    role: Role = Role.CAUSE,
    weight: float = 0.7,
    wrapper: bool = False,
) -> Signature:
    """A crash that the text itself reports, whatever caused it."""
    return Signature(
        id=name,
        code="failed-signal",
        role=role,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        weight=weight,
        needle_tells=False,
        wrapper=wrapper,
    )


SIGNATURES: tuple[Signature, ...] = (
    _crash(
        "heap-check-failed",
        "(): invalid ",
        r"(?:^|: )(?:free|malloc|realloc|munmap_chunk)\(\): (?P<what>invalid (?:pointer|size|"
        r"next size)[^:]{0,40})",
        meaning="A compiled library damaged the memory of the process ({what}), which was ended.",
        fix="Look for two versions of one library (OpenMP, protobuf, tcmalloc). " + _STACK,
        example="free(): invalid pointer",
        origin="recalled: malloc/malloc.c of glibc 2.36",
        weight=0.75,
    ),
    _crash(
        "heap-list-corrupted",
        "corrupted ",
        r"(?:^|: )corrupted (?:double-linked list|size vs\. prev_size)|(?:^|: )malloc\(\): "
        r"(?:memory corruption|corrupted top size|unsorted double linked list corrupted)",
        meaning="A compiled library damaged the memory of the process, which was ended.",
        fix="Look for two versions of one library (OpenMP, protobuf, tcmalloc). " + _STACK,
        example="corrupted double-linked list",
        origin="recalled: malloc/malloc.c of glibc 2.36",
        weight=0.75,
    ),
    _crash(
        "stack-smashed",
        "stack smashing detected",
        r"\*\*\* stack smashing detected \*\*\*",
        meaning="A compiled library wrote past the end of its stack, and the process was ended.",
        example="*** stack smashing detected ***: terminated",
        origin="recalled: debug/stack_chk_fail.c of glibc 2.36",
    ),
    _crash(
        "cpp-exception-uncaught",
        "terminate called ",
        r"^(?:libc\+\+abi: )?terminate called (?:after throwing an instance of '"
        r"(?!std::bad_alloc)[\w:]{1,80}'|without an active "
        r"exception|recursively)",
        meaning="An exception in compiled code was caught by nobody, so the process aborted; the "
        "line that begins with `what()` says which.",
        fix="Read the line after it. " + _STACK,
        example="terminate called after throwing an instance of 'std::runtime_error'",
        origin="made: a C++ program that throws, GCC 12",
        role=Role.SYMPTOM,
        weight=0.5,
        wrapper=True,
    ),
    _crash(
        "cpp-exception-uncaught-clang",
        "terminating ",
        r"\blibc\+\+abi(?:\.dylib)?: terminating (?:due to|with) uncaught exception",
        meaning="An exception in compiled code was caught by nobody, so the process aborted.",
        example="libc++abi: terminating due to uncaught exception of type std::runtime_error",
        origin="recalled: libcxxabi of LLVM 15",
        role=Role.SYMPTOM,
        weight=0.5,
        wrapper=True,
    ),
    _crash(
        "cpp-pure-virtual",
        "pure virtual method called",
        r"^pure virtual method called",
        meaning="Compiled code used an object that was already destroyed, mostly while the process "
        "shut down.",
        fix="Destroy process groups and data loaders before the script ends. " + _STACK,
        example="pure virtual method called",
        origin="recalled: libstdc++ of GCC 12",
        weight=0.6,
    ),
    _crash(
        "mpi-signal-handler",
        "] Signal: ",
        r"\] Signal: (?P<name>Segmentation fault|Aborted|Bus error|Illegal instruction|Floating "
        r"point exception) \(\d{1,2}\)",
        meaning="A process of the MPI job crashed: {name}. The frames below it show where.",
        fix="The topmost frame that is not libc's names the library. Try without UCX "
        "(`--mca pml ob1`) if it is UCX's. " + _STACK,
        example="[node1:12345] Signal: Segmentation fault (11)",
        origin="recalled: opal/util/stacktrace.c of Open MPI 4",
        weight=0.75,
    ),
    _crash(
        "ucx-signal-handler",
        "Caught signal ",
        r"\bCaught signal (?P<signal>4|6|7|8|11) \((?P<name>[A-Z][a-z ]{2,40})",
        meaning="A process crashed: {name}. UCX printed where.",
        fix="The topmost frame that is not libucs names the library. `UCX_TLS` without the "
        "transport of that frame, or `--mca pml ob1`, works around a crash in UCX. " + _STACK,
        example="[node1:4711:0:4720] Caught signal 11 (Segmentation fault: address not mapped to "
        "object at address 0x8)",
        origin="recalled: src/ucs/debug/debug.c of UCX 1.12",
        weight=0.75,
    ),
    _crash(
        "glog-signal-handler",
        " received by PID ",
        r"\*\*\* (?P<name>SIG(?:SEGV|ABRT|BUS|ILL|FPE)) \(@0x[0-9a-f]{1,16}\) received by PID",
        meaning="A process crashed: {name}. The frames below it show where.",
        fix="Read the lines before it: a failed check or assertion ends in SIGABRT. " + _STACK,
        example="*** SIGSEGV (@0x0) received by PID 4711 (TID 0x7f1c) from PID 0; stack trace: ***",
        origin="recalled: src/signalhandler.cc of glog 0.6",
        role=Role.SYMPTOM,
        weight=0.6,
        wrapper=True,
    ),
    _crash(
        "torch-signal-handler",
        " Segfault encountered ",
        r"!{3,12} Segfault encountered !{3,12}",
        meaning="A process crashed: it used memory that is not its own.",
        example="!!!!!!! Segfault encountered !!!!!!!",
        origin="source: strings in the library of torch 2.13",
        weight=0.75,
    ),
    _crash(
        "kernel-segfault",
        " segfault at ",
        r"(?P<program>[\w.:/-]{1,64})\[(?P<pid>\d{1,10})\]: segfault at [0-9a-f]{1,16} ip "
        r"[0-9a-f]{1,16} .{0,60}?error \d{1,4}(?: in (?P<library>[^\s\[]{1,200}))?",
        meaning="The kernel saw process {pid} ({program}) crash with a bad memory access.",
        example="python[4711]: segfault at 8 ip 00007f3a5c1d2e40 sp 00007ffc8a0f error 4 in "
        "libtorch_cuda.so[7f3a50000000+60000000]",
        origin="recalled: arch/x86/mm/fault.c of Linux 6",
        weight=0.75,
    ),
    _crash(
        "kernel-protection-fault",
        " general protection ",
        r"^traps: (?P<program>[\w.:/-]{1,64})\[(?P<pid>\d{1,10})\] general protection (?:fault )?"
        r"ip:",
        meaning="The kernel saw process {pid} ({program}) crash with a bad memory access.",
        example="traps: python3[4711] general protection fault ip:7f3a5c1d sp:7ffc8a0f error:0 in "
        "libcuda.so.535",
        origin="recalled: arch/x86/kernel/traps.c of Linux 6",
        weight=0.75,
    ),
    _crash(
        "exit-interrupted-by-signal",
        "(interrupted by signal ",
        r"\((?:interrupted by signal )(?P<signal>4|6|7|8): ?(?P<name>SIG[A-Z]{2,6})\)",
        meaning="A process crashed with {name}.",
        fix="Read the lines before it. " + _STACK,
        example="Process finished with exit code 134 (interrupted by signal 6: SIGABRT)",
        origin="recalled: the run window of PyCharm 2022",
        role=Role.SYMPTOM,
        weight=0.5,
        wrapper=True,
    ),
    _crash(
        "exit-access-violation",
        "exit code -1073741819",
        r"exit code -1073741819 \(0xC0000005\)",
        meaning="A process crashed on Windows with an access violation: a bad memory access in a "
        "compiled library.",
        fix="Reinstall the package whose DLL crashed, and the driver; look for two versions of one "
        "DLL.",
        example="Process finished with exit code -1073741819 (0xC0000005)",
        origin="recalled: the run window of PyCharm 2022",
        weight=0.7,
    ),
    _crash(
        "shell-segfault-lower",
        "segmentation fault ",
        r"^\[\d{1,3}\] {2,8}(?:\+ {1,4})?\d{1,10} segmentation fault\b",
        meaning="A process crashed: it used memory that is not its own.",
        example="[1]    4711 segmentation fault (core dumped)  python train.py",
        origin="recalled: Src/signals.c of zsh 5",
    ),
    _crash(
        "shell-floating-point",
        "Floating point exception",
        r"^(?:\S{1,200}: line \d+: +\d+ )?Floating point exception(?: {2}.{1,2000}|\s*\(core "
        r"dumped\).{0,2000}|\s*)$",
        meaning="A process crashed in arithmetic of compiled code, such as a division by 0.",
        example="Floating point exception (core dumped)",
        origin="recalled: siglist of glibc 2.36",
    ),
    _crash(
        "spawned-process-crashed-old",
        "Exception: process ",
        r"^Exception: process (?P<child>\d{1,7}) terminated with signal (?P<name>SIG(?:SEGV|ABRT|"
        r"BUS|ILL|FPE))",
        meaning="Process {child} of mp.spawn crashed with {name}.",
        example="Exception: process 1 terminated with signal SIGSEGV",
        origin="recalled: torch/multiprocessing/spawn.py of torch 1.4",
        role=Role.SYMPTOM,
        weight=0.6,
    ),
    Signature(
        id="spawned-process-killed-old",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Exception: process ",
        pattern=r"^Exception: process (?P<child>\d{1,7}) terminated with signal SIGKILL",
        meaning="Process {child} of mp.spawn was killed: mostly by the kernel when memory ran out.",
        fix="`dmesg -T | grep -i 'killed process'`; `sacct -j JOB -o State,MaxRSS` under Slurm.",
        example="Exception: process 3 terminated with signal SIGKILL",
        origin="recalled: torch/multiprocessing/spawn.py of torch 1.4",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="shell-killed-lower",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle=" killed  ",
        pattern=r"^(?:zsh: killed {2,8}|\[\d{1,3}\] {2,8}(?:\+ {1,4})?\d{1,10} killed {2,8})\S",
        meaning="A process was killed with SIGKILL: by the kernel when memory ran out, or by a "
        "person.",
        fix="`dmesg -T | grep -i 'killed process'`; watch `free -g` while it runs.",
        example="[1]    4711 killed     python train.py",
        origin="recalled: Src/signals.c of zsh 5",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="process-pool-worker-gone",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="managed by the executor was unexpectedly terminated",
        pattern=r"A worker process managed by the executor was unexpectedly terminated",
        meaning="A worker process of joblib died: mostly it was killed when memory ran out, else "
        "it crashed.",
        fix="Use fewer workers (`n_jobs`), and look for `Out of memory` in `dmesg`.",
        example="joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process "
        "managed by the executor was unexpectedly terminated.",
        origin="recalled: joblib/externals/loky/process_executor.py of joblib 1.2",
        weight=0.5,
    ),
)
