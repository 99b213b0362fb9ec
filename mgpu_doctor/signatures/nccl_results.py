"""Result codes of NCCL and RCCL, as torch, other programs and NCCL's own log print them."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_INTERFACE = (
    "Set `NCCL_SOCKET_IFNAME` to the interface that the hosts share (`ip -br addr`), open all "
    "ports between them, and run with `NCCL_DEBUG=INFO` to see what NCCL chose."
)
_MORE = "Run with `NCCL_DEBUG=INFO`: the line with `NCCL WARN` before it says why."
_RESULT = (
    r"(?:\b(?:NCCL|Nccl|nccl|RCCL|Rccl) [Ee]rror\b|\bNCCL_ERROR_|"
    r"\bnccl[A-Z]\w{1,30}\b(?:\(\))? failed|== ncclSuccess\b)"
)
"""What programs print before the words of a result code."""


def _trail(file: str) -> Signature:
    """A line of the trail that an error leaves in the callers, of one of NCCL's files."""
    return Signature(
        id=f"nccl-error-trail-{file}",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle=f"NCCL INFO {file}.cc:",
        pattern=rf"NCCL INFO {file}\.cc:\d{{1,5}} -> (?P<result>[1256])\b",
        meaning="A call of NCCL failed with result {result} (1: a CUDA error, 2: a system error, "
        "5: invalid usage, 6: a lost partner).",
        fix="Run with `NCCL_DEBUG=WARN` on all ranks: the first `NCCL WARN` says why.",
        example=f"node01:4711:4790 [0] NCCL INFO {file}.cc:270 -> 2",
        origin="source: src/include/checks.h of NCCL 2.32",
        weight=0.5,
        needle_tells=False,
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="nccl-system-error",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="ncclSystemError: System call",
        pattern=r"ncclSystemError: System call \((?:e\.g\. )?socket, malloc",
        meaning="A system call of NCCL failed: no reachable interface, a firewall, no locked "
        "memory for InfiniBand, or a full /dev/shm.",
        fix=_MORE + " " + _INTERFACE + " In containers: `--shm-size=16g --ulimit memlock=-1`.",
        example="ncclSystemError: System call (e.g. socket, malloc) or external library call "
        "failed or device error. ",
        origin="source: torch/csrc/distributed/c10d/NCCLUtils.cpp of torch 2.12",
        weight=0.6,
    ),
    Signature(
        id="nccl-cuda-error",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="ncclUnhandledCudaError: Call to CUDA function failed",
        pattern=r"ncclUnhandledCudaError: Call to CUDA function failed",
        meaning="A CUDA call inside NCCL failed: the GPU's memory is full, the device number is "
        "wrong, or the driver does not fit.",
        fix=_MORE + " `nvidia-smi` shows memory and driver; each rank must "
        "`torch.cuda.set_device(local_rank)` first.",
        example="ncclUnhandledCudaError: Call to CUDA function failed.",
        origin="source: torch/csrc/distributed/c10d/NCCLUtils.cpp of torch 2.12",
        weight=0.6,
    ),
    Signature(
        id="nccl-internal-error",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="ncclInternalError: Internal check failed",
        pattern=r"ncclInternalError: Internal check failed",
        meaning="A check inside NCCL failed: the ranks disagree (versions, number of ranks, "
        "devices), or the topology could not be read.",
        fix=_MORE + " Compare `torch.cuda.nccl.version()` on all hosts.",
        example="ncclInternalError: Internal check failed.",
        origin="source: torch/csrc/distributed/c10d/NCCLUtils.cpp of torch 2.12",
        weight=0.55,
        more_heads=("ncclInternalError: Internal check",),
    ),
    Signature(
        id="nccl-invalid-usage",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="ncclInvalidUsage: This usually reflects invalid usage of NCCL",
        pattern=r"ncclInvalidUsage: This usually reflects invalid usage of NCCL library",
        meaning="NCCL refuses how it is called: two ranks on one GPU, or ranks of different jobs "
        "that meet.",
        fix="Each rank must `torch.cuda.set_device(local_rank)` before its first collective. "
        + _MORE,
        example="ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        origin="recalled: torch/csrc/distributed/c10d/NCCLUtils.cpp of torch 2.12",
        weight=0.55,
    ),
    Signature(
        id="nccl-result-cuda",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="unhandled cuda error",
        pattern=_RESULT + r".{0,200}?unhandled (?:cuda|hip) error",
        meaning="A CUDA call inside NCCL failed: the GPU's memory is full, the device number is "
        "wrong, or the driver does not fit.",
        fix="Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names the "
        "call that failed. `nvidia-smi` shows memory and driver; each rank must use a GPU of its "
        "own.",
        example="RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled "
        "cuda error, NCCL version 2.10.3",
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
        meaning="A system call of NCCL failed: no reachable interface, a firewall, no locked "
        "memory for InfiniBand, or a full /dev/shm.",
        fix="Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names the "
        "call that failed. In containers: `--shm-size=16g --ulimit memlock=-1`.",
        example="RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled "
        "system error, NCCL version 2.10.3",
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
        meaning="A check inside NCCL failed: the ranks disagree (versions, number of ranks, "
        "devices), or the topology could not be read.",
        fix="Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names the "
        "call that failed. Compare `torch.cuda.nccl.version()` on all hosts.",
        example="RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, internal "
        "error, NCCL version 2.10.3",
        origin="recalled: torch/lib/c10d/NCCLUtils.hpp of torch 1.8",
        weight=0.55,
    ),
    Signature(
        id="nccl-result-invalid",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="invalid ",
        pattern=_RESULT + r".{0,200}?\binvalid (?:usage|argument)\b",
        meaning="NCCL refused a call: often two ranks on one GPU, or tensors on a device that is "
        "not the rank's.",
        fix="Run again with `NCCL_DEBUG=WARN`: the line that NCCL then prints first names the "
        "call that failed. Call `torch.cuda.set_device(local_rank)` before anything else on the "
        "GPU.",
        example="RuntimeError: NCCL error in: torch/lib/c10d/ProcessGroupNCCL.cpp:911, invalid "
        "usage, NCCL version 2.10.3",
        origin="recalled: torch/lib/c10d/NCCLUtils.hpp of torch 1.8",
        weight=0.55,
    ),
    Signature(
        id="nccl-result-remote",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="remote process exited or there was a network error",
        pattern=r"remote process exited or there was a network error",
        meaning="Another rank ended, or the network to it broke.",
        fix="Look for the first error of another rank, on every host: this one only lost its "
        "partner.",
        example="torch.distributed.DistBackendError: NCCL error in: "
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, remote process exited or there "
        "was a network error, NCCL version 2.18.1",
        origin="recalled: torch/csrc/distributed/c10d/NCCLUtils.hpp of torch 2.1",
        weight=0.5,
    ),
    *(_trail(name) for name in ("bootstrap", "init", "group")),
    Signature(
        id="nccl-call-returned",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN Call to ",
        pattern=r"NCCL WARN Call to (?P<call>\w{1,40}) (?:from \S{1,60} to \S{1,60} )?returned "
        r"(?P<reason>[A-Z][\w ]{3,60})",
        meaning="A system call of NCCL failed ({call}: {reason}).",
        fix="If another rank ended before, that is the cause. Otherwise look at "
        "NCCL_SOCKET_IFNAME, and open all ports between the hosts.",
        example="node01:30630:30661 [3] include/socket.h:390 NCCL WARN Call to connect returned "
        "Connection refused",
        origin="recalled: src/include/socket.h of NCCL 2.7",
        weight=0.6,
    ),
    Signature(
        id="nccl-test-failed",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Test NCCL failure ",
        pattern=r"\bTest NCCL failure \S{1,80}:\d{1,6} '(?P<reason>[^']{1,160})",
        meaning="A call of NCCL failed in nccl-tests: {reason}.",
        fix="Run it with NCCL_DEBUG=WARN, which says why.",
        example="node01: Test NCCL failure common.cu:958 'unhandled system error'",
        origin="recalled: src/common.cu of nccl-tests 2.13",
        weight=0.6,
    ),
    Signature(
        id="nccl-cuda-failure",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="Cuda failure",
        pattern=r"(?:NCCL WARN .{0,80}?|^(?:Last error: ?)?)Cuda failure (?:\d{1,9} )?'(?P<what>"
        r"(?!out of memory|an illegal memory|uncorrectable ECC|peer access is not)[^']{1,120})'",
        meaning="A CUDA call of NCCL failed ({what}).",
        fix="Read it as CUDA's own error: `nvidia-smi`, `dmesg | grep Xid`; each rank must "
        "`torch.cuda.set_device(local_rank)` first.",
        example="node01:30630:30661 [3] init.cc:1501 NCCL WARN Cuda failure 101 'invalid device "
        "ordinal'",
        origin="source: src/init.cc of NCCL 2.32",
        weight=0.6,
    ),
    Signature(
        id="nccl-illegal-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="Cuda failure",
        pattern=r"(?:NCCL WARN .{0,80}?|^(?:Last error: ?)?)Cuda failure (?:\d{1,9} )?'an illegal "
        r"memory access",
        meaning="A GPU kernel accessed invalid memory; NCCL was the first to notice.",
        fix="`CUDA_LAUNCH_BLOCKING=1` shows the line; look at custom kernels and indices.",
        example="node01:30630:30661 [3] init.cc:1501 NCCL WARN Cuda failure 'an illegal memory "
        "access was encountered'",
        origin="source: src/include/checks.h of NCCL 2.18 and CUDA's own text",
        weight=0.8,
    ),
    Signature(
        id="rccl-hip-failure",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="NCCL WARN ",
        pattern=r"NCCL WARN (?:HIP|ROCr) failure '(?P<what>[^']{1,120})'",
        meaning="A HIP call of RCCL failed ({what}).",
        fix="Read it as HIP's own error: `rocm-smi`, `dmesg`; each rank must "
        "`torch.cuda.set_device(local_rank)` first.",
        example="node01:412:430 [3] init.cc:1501 NCCL WARN HIP failure 'invalid device ordinal'",
        origin="source: src/include/checks.h and rocmwrap.h of RCCL 2.20",
        weight=0.6,
    ),
)
