"""How the shell, Python and the C library say that a process was killed or crashed."""

from __future__ import annotations

from collections.abc import Iterator

from mgpu_doctor.signatures.signature import Role, Signature

_STACK = "Run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash."
_SHELL = r"^(?:\S{1,200}: line \d+: +(?P<pid>\d+) )?"
"""What bash writes before the name of a signal: nothing, or where it was."""

_EXIT_TEXTS = (
    ("exit-code", "exit code {}", "Process finished with exit code {}"),
    ("exit-status", "exit status {}", "make: train failed with exit status {}"),
    ("exit-exited", "exited with code {}", "worker-2 exited with code {}"),
    ("exit-code-colon", "exit code: {}", "Job exited with exit code: {}"),
    ("exit-code-title", "Exit code: {}", "Exit code: {}"),
    ("exit-code-joined", "ExitCode: {}", "ExitCode: {}"),
)
"""ID, text and example of what shells and launchers print."""


def _by_exit_code(number: int, *, code: str, meaning: str, fix: str) -> Iterator[Signature]:
    """A signature per text that reports an exit code."""
    for name, text, example in _EXIT_TEXTS:
        yield Signature(
            id=f"{name}-{number}",
            code=code,
            role=Role.SYMPTOM,
            needle=text.format(number),
            pattern=rf"\b{text.format(number)}\b",
            meaning=meaning,
            fix=fix,
            example=example.format(number),
            origin="source: the convention of shells for exit codes",
            weight=0.5,
            needle_tells=False,
        )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="shell-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Killed",
        pattern=r"^(?:\S{1,200}: line \d+: +(?P<pid>\d+) Killed\b|Killed(?:\s{2}.{1,2000}|\s*)$)",
        meaning="A process was killed with SIGKILL: by the kernel when memory ran out, by a person "
        "or by the scheduler.",
        fix="`dmesg -T | grep -i 'killed process'`; `sacct -j JOB -o State,MaxRSS` under Slurm.",
        example="train.sh: line 1:  9851 Killed                  python train.py",
        origin="made: a script's Python that was sent SIGKILL, bash 5.2",
        weight=0.6,
    ),
    Signature(
        id="shell-terminated",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Terminated",
        pattern=_SHELL + r"Terminated(?:\s{2}.{1,2000}|\s*)$",
        meaning="A process was asked to end with SIGTERM: by a person, the scheduler or its "
        "launcher.",
        fix="If another rank failed before, that is the cause. Else ask the scheduler.",
        example="Terminated",
        origin="made: a script's Python that was sent SIGTERM, bash 5.2",
        weight=0.4,
    ),
    Signature(
        id="shell-hangup",
        code="failed-hangup",
        role=Role.CAUSE,
        needle="Hangup  ",
        pattern=_SHELL + r"Hangup\s{2}.{1,2000}$",
        meaning="The terminal or ssh session that the job was started from was closed.",
        fix="Start it in tmux, with `nohup` or as a batch job.",
        example="train.sh: line 3:  9853 Hangup                  python train.py",
        origin="made: a script's Python that was sent SIGHUP, bash 5.2",
        weight=0.7,
    ),
    Signature(
        id="shell-segmentation-fault",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Segmentation fault",
        pattern=r"^(?:\S{1,200}: line \d+: +(?P<pid>\d+) Segmentation fault\b|Segmentation "
        r"fault(?: "
        r"{2}.{1,2000}|\s*\(core dumped\).{0,2000}|\s*)$)",
        meaning="A process crashed: it used memory that is not its own. Mostly a bug or a mismatch "
        "in a compiled library.",
        fix=_STACK,
        example="train.sh: line 4:  9854 Segmentation fault      (core dumped) python train.py",
        origin="made: a script's Python that crashed, bash 5.2",
        weight=0.7,
    ),
    Signature(
        id="shell-bus-error",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Bus error",
        pattern=_SHELL + r"Bus error(?: {2}.{1,2000}|\s*\(core dumped\).{0,2000}|\s*)$",
        meaning="A process crashed with a bus error: mostly because /dev/shm is full, else because "
        "a mapped file was cut.",
        fix="`df -h /dev/shm`; `docker run --shm-size=16g` or fewer data-loader workers.",
        example="train.sh: line 5:  9856 Bus error               (core dumped) python train.py",
        origin="made: a script's Python that was sent SIGBUS, bash 5.2",
        weight=0.6,
    ),
    Signature(
        id="shell-aborted",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="Aborted",
        pattern=_SHELL + r"Aborted(?: {2}.{1,2000}|\s*\(core dumped\).{0,2000})$",
        meaning="A process ended itself after an error in compiled code; the lines before say "
        "which.",
        fix="Read the lines before. " + _STACK,
        example="train.sh: line 8:  9864 Aborted                 (core dumped) python train.py",
        origin="made: a script's Python that called abort, bash 5.2",
        weight=0.5,
    ),
    Signature(
        id="shell-illegal-instruction",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Illegal instruction",
        pattern=_SHELL + r"Illegal instruction(?: {2}.{1,2000}|\s*\(core dumped\).{0,2000}|\s*)$",
        meaning="A library was built for a newer CPU than this one.",
        fix="Install builds for this CPU (`lscpu | grep avx`); conda and pip builds differ.",
        example="train.sh: line 6:  9857 Illegal instruction     (core dumped) python train.py",
        origin="made: a script's Python that was sent SIGILL, bash 5.2",
        weight=0.7,
    ),
    Signature(
        id="python-fatal-error",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Fatal Python error: ",
        pattern=r"^Fatal Python error: (?P<signal>Segmentation fault|Bus error|Aborted|"
        r"Illegal instruction|Floating point exception)",
        meaning="Python crashed: {signal}. The lines that follow show where each thread was.",
        fix="The topmost frame of the current thread names the library; update it, or report it "
        "there. A bus error mostly means that /dev/shm is full.",
        example="Fatal Python error: Segmentation fault",
        origin="made: a null pointer read under PYTHONFAULTHANDLER=1, Python 3.11",
        weight=0.9,
    ),
    Signature(
        id="heap-corrupted",
        code="failed-signal",
        role=Role.CAUSE,
        needle="double free ",
        pattern=r"^(?:\*\*\* Error in .{1,200}: )?(?:free\(\): )?double free (?:detected in tcache "
        r"\d|or corruption \([!\w]{1,8}\))",
        meaning="A compiled library freed memory twice, and the process was ended.",
        fix="Look for two versions of one library (for example two OpenMP or protobuf). " + _STACK,
        example="free(): double free detected in tcache 2",
        origin="made: a C++ program that frees twice, glibc 2.36",
        weight=0.8,
    ),
    *_by_exit_code(
        139,
        code="failed-signal",
        meaning="A process crashed with SIGSEGV: exit code 139 is 128 and the signal's number.",
        fix="A C or CUDA extension crashed. " + _STACK,
    ),
    *_by_exit_code(
        137,
        code="failed-killed",
        meaning="A process was killed with SIGKILL: exit code 137 is 128 and the signal's number.",
        fix="Look for `Out of memory` in `dmesg`, and in the scheduler's log.",
    ),
)
