"""What MPI launchers (Open MPI, Intel MPI) and ssh say when a rank or node fails."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="mpirun-killed",
        code="failed-killed",
        role=Role.CAUSE,
        needle=" noticed that process rank ",
        pattern=r"(?:mpirun|mpiexec|orterun|prterun) noticed that process rank (?P<rank>\d+) with "
        r"PID (?P<pid>\d+) on node (?P<host>\S{1,64}) exited on signal (?P<signal>9|15) ",
        meaning="Rank {rank} on {host} was killed (signal {signal}); mpirun ended the others.",
        fix="Signal 9: look in `dmesg` of {host} for the out-of-memory killer. Else a person or "
        "the scheduler ended it.",
        example="mpirun noticed that process rank 2 with PID 0 on node node3 exited on signal 9 "
        "(Killed).",
        origin="source: orte/tools/orterun/help-orterun.txt of Open MPI 4.1",
        weight=0.8,
    ),
    Signature(
        id="mpirun-crashed",
        code="failed-signal",
        role=Role.CAUSE,
        needle=" noticed that process rank ",
        pattern=r"(?:mpirun|mpiexec|orterun|prterun) noticed that process rank (?P<rank>\d+) with "
        r"PID (?P<pid>\d+) on node (?P<host>\S{1,64}) exited on signal (?P<signal>4|6|7|8|11) ",
        meaning="Rank {rank} on {host} crashed with signal {signal}; mpirun ended the others.",
        fix="Run with PYTHONFAULTHANDLER=1 (`mpirun -x PYTHONFAULTHANDLER=1`) to get its stack.",
        example="mpirun noticed that process rank 1 with PID 0 on node node3 exited on signal 11 "
        "(Segmentation fault).",
        origin="source: orte/tools/orterun/help-orterun.txt of Open MPI 4.1",
        weight=0.8,
    ),
    Signature(
        id="mpirun-first-failed",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="Process name: [[",
        pattern=r"^\s*Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]",
        meaning="Rank {rank} was the first to end with an error; mpirun ended the others.",
        fix="Look at the output of rank {rank}.",
        example="  Process name: [[56373,1],1]",
        origin="source: orte/tools/orterun/help-orterun.txt of Open MPI 4.1",
        weight=0.5,
    ),
    Signature(
        id="mpi-abort",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="MPI_ABORT was invoked on rank ",
        pattern=r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator",
        meaning="Rank {rank} gave up and ended all others.",
        fix="Look at the output of rank {rank} just before.",
        example="MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
        origin="source: ompi/mpi/help-mpi-api.txt of Open MPI 4.1",
        weight=0.5,
    ),
    Signature(
        id="mpi-lost-node",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="has lost communication with a remote daemon",
        pattern=r"(?:ORTE|PRTE|PMIx) has lost communication with a remote daemon",
        meaning="A node of the job cannot be reached any more: it went down, or its network did. "
        "The next lines name it.",
        fix="Check that node (`ping`, the scheduler's view) and start again without it.",
        example="ORTE has lost communication with a remote daemon.",
        origin="source: orte/mca/errmgr/base/help-errmgr-base.txt of Open MPI 4.1",
        weight=0.7,
    ),
    Signature(
        id="mpi-no-slots",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="There are not enough slots available in",
        pattern=r"There are not enough slots available in the system to satisfy the (?P<slots>\d+)",
        meaning="mpirun was asked for {slots} processes, and its hosts have fewer slots.",
        fix="Give the slots (`-H host1:4,host2:4` or `slots=4` in the host file), or start fewer.",
        example="There are not enough slots available in the system to satisfy the 16",
        origin="source: orte/mca/rmaps/base/help-orte-rmaps-base.txt of Open MPI 4.1",
        weight=0.95,
    ),
    Signature(
        id="hydra-killed",
        code="failed-killed",
        role=Role.CAUSE,
        needle="=   KILLED BY SIGNAL: ",
        pattern=r"^=   KILLED BY SIGNAL: (?P<signal>9|15) ",
        meaning="The rank that the line before names was killed (signal {signal}); mpiexec ended "
        "the others.",
        fix="Signal 9: look in `dmesg` of its host for the out-of-memory killer. Else a person or "
        "the scheduler ended it.",
        example="=   KILLED BY SIGNAL: 9 (Killed)",
        origin="source: the Hydra launcher of Intel MPI 2021",
        weight=0.7,
    ),
    Signature(
        id="hydra-crashed",
        code="failed-signal",
        role=Role.CAUSE,
        needle="=   KILLED BY SIGNAL: ",
        pattern=r"^=   KILLED BY SIGNAL: (?P<signal>4|6|7|8|11) ",
        meaning="The rank that the line before names crashed (signal {signal}); mpiexec ended the "
        "others.",
        fix="7 is mostly a full /dev/shm; else run with PYTHONFAULTHANDLER=1 to get the stack.",
        example="=   KILLED BY SIGNAL: 7 (Bus error)",
        origin="source: the Hydra launcher of Intel MPI 2021",
        weight=0.7,
    ),
    Signature(
        id="hydra-first-failed",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle=" RUNNING AT ",
        pattern=r"^=   RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<host>\S{1,64})",
        meaning="Rank {rank} on {host} ended badly; mpiexec ended the others.",
        fix="Look at the output of rank {rank}.",
        example="=   RANK 1 PID 65033 RUNNING AT node3",
        origin="source: the Hydra launcher of Intel MPI 2021",
        weight=0.5,
    ),
    Signature(
        id="ssh-refused",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="ssh: connect to host ",
        pattern=r"ssh: connect to host (?P<host>\S{1,128}) port (?P<port>\d+): (?P<reason>[\w ]+)",
        meaning="The launcher could not reach {host} with ssh: {reason}.",
        fix="`ssh {host} true` must work without a question from the host that launches.",
        example="ssh: connect to host node2 port 22: Connection refused",
        origin="source: sshconnect.c of OpenSSH 9.2",
        weight=0.8,
    ),
)
