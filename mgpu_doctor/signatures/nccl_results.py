"""What other versions and frameworks print of a result code of NCCL or RCCL."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_RESULT = (
    r"(?:\b(?:NCCL|Nccl|nccl|RCCL|Rccl) [Ee]rror\b|\bNCCL_ERROR_|"
    r"\bnccl[A-Z]\w{1,30}\b(?:\(\))? failed|== ncclSuccess\b)"
)
"""What programs print before the words of a result code."""

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="nccl-result-cuda",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="unhandled cuda error",
        pattern=_RESULT + r".{0,200}?unhandled (?:cuda|hip) error",
        meaning=(
            "A CUDA call inside NCCL failed: the GPU's memory is full, the device number is "
            "wrong, or the driver does not fit."
        ),
        fix=(
            "Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names "
            "the call that failed. `nvidia-smi` shows memory and driver; each rank must use "
            "a GPU of its own."
        ),
        example=(
            "RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, "
            "unhandled cuda error, NCCL version 2.10.3"
        ),
        origin="recalled: torch/lib/c10d/NCCLUtils.hpp of torch 1.8",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-result-system",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="unhandled system error",
        pattern=_RESULT + r".{0,200}?unhandled system error",
        meaning=(
            "A system call of NCCL failed: no reachable interface, a firewall, no locked "
            "memory for InfiniBand, or a full /dev/shm."
        ),
        fix=(
            "Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names "
            "the call that failed. In containers: `--shm-size=16g --ulimit memlock=-1`."
        ),
        example=(
            "RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, "
            "unhandled system error, NCCL version 2.10.3"
        ),
        origin="recalled: torch/lib/c10d/NCCLUtils.hpp of torch 1.8",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-result-internal",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="internal error",
        pattern=rf"(?:{_RESULT}|\bNCCL failure\b).{{0,200}}?\binternal error\b",
        meaning=(
            "A check inside NCCL failed: the ranks disagree (versions, number of ranks, "
            "devices), or the topology could not be read."
        ),
        fix=(
            "Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names "
            "the call that failed. Compare `torch.cuda.nccl.version()` on all hosts."
        ),
        example=(
            "RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, internal "
            "error, NCCL version 2.10.3"
        ),
        origin="recalled: torch/lib/c10d/NCCLUtils.hpp of torch 1.8",
        weight=0.55,
        needle_tells=False,
    ),
    Signature(
        id="nccl-result-invalid",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="invalid ",
        pattern=_RESULT + r".{0,200}?\binvalid (?:usage|argument)\b",
        meaning=(
            "NCCL refused a call: often two ranks on one GPU, or tensors on a device that "
            "is not the rank's."
        ),
        fix=(
            "Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names "
            "the call that failed. Call `torch.cuda.set_device(local_rank)` before anything "
            "else on the GPU."
        ),
        example=(
            "RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, invalid "
            "usage, NCCL version 2.10.3"
        ),
        origin="recalled: torch/lib/c10d/NCCLUtils.hpp of torch 1.8",
        weight=0.55,
        needle_tells=False,
    ),
    Signature(
        id="nccl-result-remote",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="remote process exited or there was a network error",
        pattern=r"remote process exited or there was a network error",
        meaning="Another rank ended, or the network to it broke.",
        fix=(
            "Look for the first error of another rank, on every host: this one only lost "
            "its partner."
        ),
        example=(
            "torch.distributed.DistBackendError: NCCL error in: "
            "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, remote process exited "
            "or there was a network error, NCCL version 2.18.1"
        ),
        origin="recalled: torch/csrc/distributed/c10d/NCCLUtils.hpp of torch 2.1",
        weight=0.5,
    ),
    Signature(
        id="nccl-proxy-connect",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN [",
        pattern=(
            r"NCCL WARN \[(?:Service thread|Proxy Service ?\d{0,6})\] (?:Error encountered "
            r"progressing operation=|Failed to execute operation )(?P<operation>\w{1,40})"
        ),
        meaning=(
            "NCCL's helper thread could not {operation}: the other side closed the "
            "connection or cannot be reached."
        ),
        fix=(
            "Look for the first error of another rank. If none has one, check "
            "`NCCL_SOCKET_IFNAME` and the firewall between the hosts."
        ),
        example=(
            "node01:811:902 [3] proxy.cc:1485 NCCL WARN [Service thread] Error encountered "
            "progressing operation=Connect, res=3, closing connection"
        ),
        origin="recalled: src/proxy.cc of NCCL 2.19",
        weight=0.5,
    ),
    Signature(
        id="nccl-call-reset",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN Call to ",
        pattern=(
            r"NCCL WARN Call to (?P<call>read|recv|write|send|connect) failed ?: "
            r"(?P<why>[A-Z][a-z ]{1,60})"
        ),
        meaning="NCCL's connection to another rank broke ({call}: {why}).",
        fix=(
            "Look for the first error of another rank, on every host: this one only lost "
            "its partner."
        ),
        example=(
            "node01:15:91 [2] include/socket.h:403 NCCL WARN Call to recv failed : "
            "Connection reset by peer"
        ),
        origin="recalled: src/include/socket.h of NCCL 2.7",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="nccl-connect-aborted",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN socket",
        pattern=(
            r"NCCL WARN socket(?:Start|Poll|Finalize)Connect: [Cc]onnect to "
            r"(?P<host>\S{1,255}) (?:failed ?:|returned) (?P<why>Software caused connection "
            r"abort|Connection reset by peer|Cannot assign requested address|Invalid "
            r"argument)"
        ),
        meaning="NCCL could not connect to {host} ({why}).",
        fix=("Set `NCCL_SOCKET_IFNAME` to the interface that the hosts share (`ip -br addr`)."),
        example=(
            "node01:39:75 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to "
            "192.0.2.7<40001> failed : Software caused connection abort"
        ),
        origin="recalled: src/misc/socket.cc of NCCL 2.19",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-ib-completion-old",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Got completion with error",
        pattern=r"NET/IB ?: Got completion with error (?P<status>\d{1,4})\b",
        meaning=(
            "An InfiniBand transfer failed with status {status}: 12 means that the other "
            "side did not answer."
        ),
        fix=(
            "Look for the first error of another rank. If none has one, check the link: "
            "`ibstat`, `ibqueryerrors`; `NCCL_IB_TIMEOUT=22` bridges short interruptions."
        ),
        example=(
            "node01:73:95 [0] transport/net_ib.cc:845 NCCL WARN NET/IB : Got completion "
            "with error 12, opcode 129, len 0, vendor err 129"
        ),
        origin="recalled: src/transport/net_ib.cc of NCCL 2.10",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="nccl-checked-in",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="ranks has already checked in",
        pattern=(
            r"Bootstrap Root ?: rank (?P<rank>\d{1,6}) of (?P<ranks>\d{1,6}) ranks has "
            r"already checked in"
        ),
        meaning=(
            "Two processes say that they are rank {rank}: the ranks are numbered twice, or "
            "an older run still lives."
        ),
        fix=(
            "Print RANK and WORLD_SIZE on every host; `--node-rank` must differ. End "
            "processes of older runs."
        ),
        example=(
            "node01:69:85 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 3 of 16 "
            "ranks has already checked in"
        ),
        origin="recalled: src/bootstrap.cc of NCCL 2.10",
        weight=0.9,
    ),
)
