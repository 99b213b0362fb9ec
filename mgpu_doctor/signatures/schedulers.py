"""How PBS, LSF and Ray end a job."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="pbs-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="=>> PBS: job killed: ",
        pattern=r"=>> PBS: job killed: walltime (?P<used>\d+) exceeded limit (?P<limit>\d+)",
        meaning="PBS ended the job: its time of {limit} s was over.",
        fix="Ask for more (`-l walltime=HH:MM:SS`), and resume from a checkpoint.",
        example="=>> PBS: job killed: walltime 7230 exceeded limit 7200",
        origin="source: src/resmom of OpenPBS 20",
        weight=0.98,
        needle_tells=False,
    ),
    Signature(
        id="pbs-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle="=>> PBS: job killed: ",
        pattern=r"=>> PBS: job killed: (?:v|p)?v?mem (?P<used>(?:job total )?\d{1,20} ?"
        r"(?:[kmg]?b)?) exceeded limit (?P<limit>\d+)",
        meaning="PBS ended the job: it used {used} of memory, more than its limit.",
        fix="Ask for more (`-l select=1:mem=64gb`), or use fewer data-loader workers.",
        example="=>> PBS: job killed: vmem 51231789056 exceeded limit 17179869184",
        origin="source: src/resmom of OpenPBS 20",
        weight=0.98,
        needle_tells=False,
    ),
    Signature(
        id="lsf-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="TERM_RUNLIMIT: job killed",
        pattern=r"TERM_RUNLIMIT: job killed after reaching LSF run time limit",
        meaning="LSF ended the job: its time was over.",
        fix="Ask for more (`bsub -W`), and resume from a checkpoint.",
        example="TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        origin="source: the job report of IBM LSF 10",
        weight=0.98,
    ),
    Signature(
        id="lsf-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle="TERM_MEMLIMIT: job killed",
        pattern=r"TERM_MEMLIMIT: job killed after reaching LSF memory usage limit",
        meaning="LSF ended the job: it used more memory than it asked for.",
        fix="Ask for more (`bsub -M`, `rusage[mem=]`), or use fewer data-loader workers.",
        example="TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        origin="source: the job report of IBM LSF 10",
        weight=0.98,
    ),
    Signature(
        id="ray-low-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="killed due to the node running low on memory",
        pattern=r"(?:Task was|Actor was|(?P<count>\d{1,9}) worker\(s\) were|Task) killed due to "
        r"the node running low on memory",
        meaning="The node ran short of memory and Ray killed a worker on it.",
        fix="Use fewer workers a node or data-loader workers; RAY_memory_usage_threshold moves the "
        "limit.",
        example="ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
        "memory.",
        origin="source: src/ray/raylet/node_manager.cc of Ray 2",
        weight=0.95,
    ),
)
