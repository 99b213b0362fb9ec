"""Processes that were killed or crashed, by the exit status that a shell or a parent prints."""

from __future__ import annotations

from collections.abc import Iterator

from mgpu_doctor.signatures.signature import Role, Signature

_BAR = r"(?:\d(?:it/s|s/it)(?:, [^]]{1,200})?\]|\d%\|[^]]{1,200}\]|[=>.]\][^]]{1,200}\d) {0,4}"
"""The end of a progress bar of tqdm or Keras, which has no line end: the same line goes on."""
_SHELL = r"(?:^(?:\S{1,200}: line \d+: +(?P<pid>\d+) )?|" + _BAR + r")"
"""What is in a line before bash's name of a signal: nothing, where it was, or a progress bar."""
_STACK = (
    "Run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash, and `ulimit -c "
    "unlimited` to keep a core file for gdb."
)
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
        meaning="A process was killed with SIGKILL: by the kernel when memory ran out, by a "
        "person or by the scheduler.",
        fix="`dmesg -T | grep -i 'killed process'`; `sacct -j JOB -o State,MaxRSS` under Slurm.",
        example="train.sh: line 1:  9851 Killed                  python train.py",
        origin="made: a script's Python that was sent SIGKILL, bash 5.2",
        weight=0.6,
    ),
    Signature(
        id="shell-killed-after-bar",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Killed",
        pattern=r"(?:" + _BAR + r"|^\d{1,8})Killed(?: {2}.{1,2000}|\s*)$",
        meaning="A process was killed with SIGKILL while it drew its progress bar: by the kernel "
        "when memory ran out, or by a person.",
        fix="`dmesg -T | grep -i 'killed process'`; watch `free -g` while it runs.",
        example=" 12%|##        | 12/100 [00:07<00:51,  1.70it/s]Killed",
        origin="made: a progress bar without a line end, and bash's message after it",
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
    ),
    Signature(
        id="shell-terminated",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Terminated",
        pattern=_SHELL + r"Terminated(?:\s{2}.{1,2000}|\s*)$",
        meaning="A process was asked to end with SIGTERM: by a person, the scheduler or its "
        "launcher.",
        fix="If another rank failed before, that is the cause. Otherwise ask the scheduler.",
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
        pattern=r"(?:^\S{1,200}: line \d+: +(?P<pid>\d+) Segmentation fault\b|(?:^|"
        + _BAR
        + r")Segmentation fault(?: {2}.{1,2000}|\s*\(core dumped\).{0,2000}|\s*)$)",
        meaning="A process crashed: it used memory that is not its own. Usually a bug or a "
        "mismatch in a compiled library.",
        fix=_STACK,
        example="train.sh: line 4:  9854 Segmentation fault      (core dumped) python train.py",
        origin="made: a script's Python that crashed, bash 5.2",
        weight=0.7,
    ),
    Signature(
        id="shell-segfault-lower",
        code="failed-signal",
        role=Role.CAUSE,
        needle="segmentation fault ",
        pattern=r"^\[\d{1,3}\] {2,8}(?:\+ {1,4})?\d{1,10} segmentation fault\b",
        meaning="A process crashed: it used memory that is not its own.",
        fix=_STACK,
        example="[1]    4711 segmentation fault (core dumped)  python train.py",
        origin="recalled: Src/signals.c of zsh 5",
        weight=0.7,
    ),
    Signature(
        id="shell-bus-error",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Bus error",
        pattern=_SHELL + r"Bus error(?: {2}.{1,2000}|\s*\(core dumped\).{0,2000}|\s*)$",
        meaning="A process crashed with a bus error: usually because /dev/shm is full, otherwise "
        "because a mapped file was cut.",
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
        id="shell-floating-point",
        code="failed-signal",
        role=Role.CAUSE,
        needle="Floating point exception",
        pattern=r"^(?:\S{1,200}: line \d+: +\d+ )?Floating point exception(?: {2}.{1,2000}|"
        r"\s*\(core dumped\).{0,2000}|\s*)$",
        meaning="A process crashed in arithmetic of compiled code, such as a division by 0.",
        fix=_STACK,
        example="Floating point exception (core dumped)",
        origin="recalled: siglist of glibc 2.36",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="exit-interrupted-by-signal",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="(interrupted by signal ",
        pattern=r"\((?:interrupted by signal )(?P<signal>4|6|7|8): ?(?P<name>SIG[A-Z]{2,6})\)",
        meaning="A process crashed with {name}.",
        fix="Read the lines before it. " + _STACK,
        example="Process finished with exit code 134 (interrupted by signal 6: SIGABRT)",
        origin="recalled: the run window of PyCharm 2022",
        weight=0.5,
        needle_tells=False,
        wrapper=True,
    ),
    Signature(
        id="exit-access-violation",
        code="failed-signal",
        role=Role.CAUSE,
        needle="exit code -1073741819",
        pattern=r"exit code -1073741819 \(0xC0000005\)",
        meaning="A process crashed on Windows with an access violation: a bad memory access in a "
        "compiled library.",
        fix="Reinstall the package whose DLL crashed, and the driver; look for two versions of "
        "one DLL.",
        example="Process finished with exit code -1073741819 (0xC0000005)",
        origin="recalled: the run window of PyCharm 2022",
        weight=0.7,
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
