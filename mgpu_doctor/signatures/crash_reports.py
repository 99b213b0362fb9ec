"""Crashes of native code, as Python, the C library, stack printers and the kernel report them."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_STACK = (
    "Run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash, and `ulimit -c "
    "unlimited` to keep a core file for gdb."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="python-fatal-error",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Fatal Python error: ",
        pattern=r"^Fatal Python error: (?P<signal>Segmentation fault|Bus error|Aborted|Illegal "
        r"instruction|Floating point exception)",
        meaning="Python crashed: {signal}. The lines that follow show where each thread was.",
        fix="The topmost frame of the current thread names the library; update it, or report it "
        "there. A bus error usually means that /dev/shm is full.",
        example="Fatal Python error: Segmentation fault",
        origin="made: a null pointer read under PYTHONFAULTHANDLER=1, Python 3.11",
    ),
    Signature(
        id="heap-corrupted",
        code="failed-signal",
        role=Role.CAUSE,
        needle="double free ",
        pattern=r"^(?:\*\*\* Error in .{1,200}: )?(?:free\(\): )?double free (?:detected in "
        r"tcache \d|or corruption \([!\w]{1,8}\))",
        meaning="A compiled library freed memory twice, and the process was ended.",
        fix="Look for two versions of one library (for example two OpenMP or protobuf). " + _STACK,
        example="free(): double free detected in tcache 2",
        origin="made: a C++ program that frees twice, glibc 2.36",
        weight=0.8,
    ),
    Signature(
        id="heap-check-failed",
        code="failed-signal",
        role=Role.CAUSE,
        needle="(): invalid ",
        pattern=r"(?:^|: )(?:free|malloc|realloc|munmap_chunk)\(\): (?P<what>invalid (?:pointer|"
        r"size|next size)[^:]{0,40})",
        meaning="A compiled library damaged the memory of the process ({what}), which was ended.",
        fix="Look for two versions of one library (OpenMP, protobuf, tcmalloc). " + _STACK,
        example="free(): invalid pointer",
        origin="recalled: malloc/malloc.c of glibc 2.36",
        weight=0.75,
    ),
    Signature(
        id="heap-list-corrupted",
        code="failed-signal",
        role=Role.CAUSE,
        needle="corrupted ",
        pattern=r"(?:^|: )corrupted (?:double-linked list|size vs\. prev_size)|(?:^|: "
        r")malloc\(\): (?:memory corruption|corrupted top size|unsorted double linked list "
        r"corrupted)",
        meaning="A compiled library damaged the memory of the process, which was ended.",
        fix="Look for two versions of one library (OpenMP, protobuf, tcmalloc). " + _STACK,
        example="corrupted double-linked list",
        origin="recalled: malloc/malloc.c of glibc 2.36",
        weight=0.75,
    ),
    Signature(
        id="stack-smashed",
        code="failed-signal",
        role=Role.CAUSE,
        needle="stack smashing detected",
        pattern=r"\*\*\* stack smashing detected \*\*\*",
        meaning="A compiled library wrote past the end of its stack, and the process was ended.",
        fix=_STACK,
        example="*** stack smashing detected ***: terminated",
        origin="recalled: debug/stack_chk_fail.c of glibc 2.36",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="cpp-exception-uncaught",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="terminate called ",
        pattern=r"^(?:libc\+\+abi: )?terminate called (?:after throwing an instance of '"
        r"(?!std::bad_alloc)[\w:]{1,80}'|without an active exception|recursively)",
        meaning="An exception in compiled code was caught by nobody, so the process aborted; the "
        "line that begins with `what()` says which.",
        fix="Read the line after it. " + _STACK,
        example="terminate called after throwing an instance of 'std::runtime_error'",
        origin="made: a C++ program that throws, GCC 12",
        weight=0.5,
        wrapper=True,
    ),
    Signature(
        id="cpp-exception-uncaught-clang",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="terminating ",
        pattern=r"\blibc\+\+abi(?:\.dylib)?: terminating (?:due to|with) uncaught exception",
        meaning="An exception in compiled code was caught by nobody, so the process aborted.",
        fix=_STACK,
        example="libc++abi: terminating due to uncaught exception of type std::runtime_error",
        origin="recalled: libcxxabi of LLVM 15",
        weight=0.5,
        wrapper=True,
    ),
    Signature(
        id="cpp-pure-virtual",
        code="failed-signal",
        role=Role.CAUSE,
        needle="pure virtual method called",
        pattern=r"^pure virtual method called",
        meaning="Compiled code used an object that was already destroyed, usually while the "
        "process shut down.",
        fix="Destroy process groups and data loaders before the script ends. " + _STACK,
        example="pure virtual method called",
        origin="recalled: libstdc++ of GCC 12",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="mpi-signal-handler",
        code="failed-signal",
        role=Role.CAUSE,
        needle="] Signal: ",
        pattern=r"\] Signal: (?P<name>Segmentation fault|Aborted|Bus error|Illegal instruction|"
        r"Floating point exception) \(\d{1,2}\)",
        meaning="A process of the MPI job crashed: {name}. The frames below it show where.",
        fix="The topmost frame that is not libc's names the library. Try without UCX (`--mca pml "
        "ob1`) if it is UCX's. " + _STACK,
        example="[node1:12345] Signal: Segmentation fault (11)",
        origin="recalled: opal/util/stacktrace.c of Open MPI 4",
        weight=0.75,
    ),
    Signature(
        id="ucx-signal-handler",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Caught signal ",
        pattern=r"\bCaught signal (?P<signal>4|6|7|8|11) \((?P<name>[A-Z][a-z ]{2,40})",
        meaning="A process crashed: {name}. UCX printed where.",
        fix="The topmost frame that is not libucs names the library. `UCX_TLS` without the "
        "transport of that frame, or `--mca pml ob1`, works around a crash in UCX. " + _STACK,
        example="[node1:4711:0:4720] Caught signal 11 (Segmentation fault: address not mapped to "
        "object at address 0x8)",
        origin="recalled: src/ucs/debug/debug.c of UCX 1.12",
        weight=0.75,
    ),
    Signature(
        id="glog-signal-handler",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle=" received by PID ",
        pattern=r"\*\*\* (?P<name>SIG(?:SEGV|ABRT|BUS|ILL|FPE)) \(@0x[0-9a-f]{1,16}\) received by "
        r"PID",
        meaning="A process crashed: {name}. The frames below it show where.",
        fix="Read the lines before it: a failed check or assertion ends in SIGABRT. " + _STACK,
        example="*** SIGSEGV (@0x0) received by PID 4711 (TID 0x7f1c) from PID 0; stack trace: ***",
        origin="recalled: src/signalhandler.cc of glog 0.6",
        weight=0.6,
        needle_tells=False,
        wrapper=True,
    ),
    Signature(
        id="torch-signal-handler",
        code="failed-signal",
        role=Role.CAUSE,
        needle=" Segfault encountered ",
        pattern=r"!{3,12} Segfault encountered !{3,12}",
        meaning="A process crashed: it used memory that is not its own.",
        fix=_STACK,
        example="!!!!!!! Segfault encountered !!!!!!!",
        origin="source: strings in the library of torch 2.13",
        weight=0.75,
    ),
    Signature(
        id="kernel-segfault",
        code="failed-signal",
        role=Role.CAUSE,
        needle=" segfault at ",
        pattern=r"(?P<program>[\w.:/-]{1,64})\[(?P<pid>\d{1,10})\]: segfault at [0-9a-f]{1,16} ip "
        r"[0-9a-f]{1,16} .{0,60}?error \d{1,4}(?: in (?P<library>[^\s\[]{1,200}))?",
        meaning="The kernel saw process {pid} ({program}) crash with a bad memory access.",
        fix=_STACK,
        example="python[4711]: segfault at 8 ip 00007f3a5c1d2e40 sp 00007ffc8a0f error 4 in "
        "libtorch_cuda.so[7f3a50000000+60000000]",
        origin="recalled: arch/x86/mm/fault.c of Linux 6",
        weight=0.75,
    ),
    Signature(
        id="kernel-protection-fault",
        code="failed-signal",
        role=Role.CAUSE,
        needle=" general protection ",
        pattern=r"^traps: (?P<program>[\w.:/-]{1,64})\[(?P<pid>\d{1,10})\] general protection "
        r"(?:fault )?ip:",
        meaning="The kernel saw process {pid} ({program}) crash with a bad memory access.",
        fix=_STACK,
        example="traps: python3[4711] general protection fault ip:7f3a5c1d sp:7ffc8a0f error:0 in "
        "libcuda.so.535",
        origin="recalled: arch/x86/kernel/traps.c of Linux 6",
        weight=0.75,
    ),
)
