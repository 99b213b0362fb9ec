"""What NCCL needs and lacks: a GPU per rank, equal versions and calls, memory, peer access."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="nccl-duplicate-gpu",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="Duplicate GPU detected",
        pattern=r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on "
        r"CUDA device (?P<bus>[0-9a-fA-F:.]+)",
        meaning="Ranks {first} and {second} use the same GPU (PCI {bus}), which NCCL refuses.",
        fix="Call `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))` before "
        "`init_process_group`. Start no more ranks than there are GPUs, and do not give all ranks "
        "the same entry in CUDA_VISIBLE_DEVICES.",
        example="Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4f000",
        origin="source: src/init.cc of NCCL 2.32",
        weight=0.96,
        mutual=True,
    ),
    Signature(
        id="nccl-version-mismatch",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="Mismatched NCCL version detected",
        pattern=r"Mismatched NCCL version detected ?: rank (?P<first>\d+) version "
        r"(?P<version>\d+) rank (?P<second>\d+) version (?P<other>\d+)",
        meaning="Rank {first} runs NCCL {version} and rank {second} runs {other}.",
        fix="Use one image or environment on all hosts; look for a second libnccl in "
        "LD_LIBRARY_PATH or LD_PRELOAD.",
        example="node01:984:984 [0] init.cc:901 NCCL WARN Mismatched NCCL version detected : rank "
        "0 version 22703 rank 8 version 22105",
        origin="source: src/init.cc of NCCL 2.32",
        weight=0.96,
        mutual=True,
    ),
    Signature(
        id="nccl-not-built-in",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="Distributed package doesn't have NCCL built in",
        pattern=r"RuntimeError: Distributed package doesn't have NCCL built in",
        meaning="The script asks for NCCL, and the torch that is installed is built without it (a "
        "CPU build).",
        fix="Install a CUDA build of torch, or use `init_process_group('gloo')` on CPUs.",
        example="RuntimeError: Distributed package doesn't have NCCL built in",
        origin="made: init_process_group('nccl') with a CPU build, torch 2.13",
    ),
    Signature(
        id="nccl-without-gpu",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="ProcessGroupNCCL is only supported with GPUs",
        pattern=r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        meaning="NCCL was asked for, and this process sees no GPU.",
        fix="Compare `nvidia-smi -L` and `echo $CUDA_VISIBLE_DEVICES` where the rank runs. Under "
        "Slurm ask for GPUs (`--gres=gpu:N`), in Docker start with `--gpus all`. On CPUs use the "
        "gloo backend.",
        example="ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12",
    ),
    Signature(
        id="nccl-cpu-tensor",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="Tensors must be CUDA and dense",
        pattern=r"(?:Tensors must be CUDA and dense|NCCL only supports CUDA tensors)",
        meaning="A collective of NCCL got a tensor that lies on the CPU (or is sparse).",
        fix="Move it to this rank's GPU first: `x = x.to(local_rank)`; for CPU tensors make the "
        "group with `init_process_group('cpu:gloo,cuda:nccl')`.",
        example="ValueError: Tensors must be CUDA and dense",
        origin="source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 2.12",
    ),
    Signature(
        id="nccl-no-backend-for-cpu",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="No backend type associated with device type",
        pattern=r"No backend type associated with device type (?P<device>\w+)",
        meaning="A collective got a tensor on {device}, and the process group has no backend for "
        "that.",
        fix="Move the tensor to the device of the group, or make the group with "
        "`init_process_group('cpu:gloo,cuda:nccl')`.",
        example="RuntimeError: No backend type associated with device type cpu",
        origin="source: torch/csrc/distributed/c10d/ProcessGroup.hpp of torch 2.13",
    ),
    Signature(
        id="nccl-message-truncated",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="Message truncated : received",
        pattern=r"NCCL WARN Message truncated : received (?P<got>[\d,]{1,30}) bytes instead of "
        r"(?P<expected>[\d,]{1,30})",
        meaning="Two ranks disagree about an exchange ({got} bytes arrived, not {expected}): "
        "they call different collectives or make groups in another order.",
        fix="Every rank must make the same groups and call the same collectives in the same "
        "order: look for a branch on the rank, also around `new_group`.",
        example="node01:984:1021 [0] bootstrap.cc:133 NCCL WARN Message truncated : received 1024 "
        "bytes instead of 256",
        origin="source: src/bootstrap.cc of NCCL 2.32",
        weight=0.8,
        mutual=True,
    ),
    Signature(
        id="nccl-collectives-differ",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="Mismatched collective detected, please check",
        pattern=r"NCCL WARN Mismatched collective detected, please check your collective calls at "
        r"and around rank (?P<rank>\d{1,7})",
        meaning="Ranks called different collectives, or with different sizes, around rank {rank}.",
        fix="Compare what the ranks call there. NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL logs each "
        "collective; TORCH_DISTRIBUTED_DEBUG=DETAIL compares them.",
        example="init.cc:1247 NCCL WARN Mismatched collective detected, please check your "
        "collective calls at and around rank 3. You can use NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=COLL to see the collective logs",
        origin="recalled: src/init.cc of NCCL 2.4",
    ),
    Signature(
        id="nccl-invalid-root",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="(root should be in the 0..",
        pattern=r"NCCL WARN (?P<operation>\w+) : invalid root (?P<root>-?\d+) \(root should be in "
        r"the 0\.\.(?P<last>\d+) range\)",
        meaning="{operation} was called with source or destination {root} in a group whose ranks "
        "are 0 to {last}.",
        fix="Give `src` and `dst` as ranks of the whole job, not of the group "
        "(`dist.get_global_rank(group, i)`), or start as many ranks as the script is written for.",
        example="node01:984:984 [0] misc/argcheck.cc:55 NCCL WARN Broadcast : invalid root 4 "
        "(root should be in the 0..4 range)",
        origin="source: src/misc/argcheck.cc of NCCL 2.32",
    ),
    Signature(
        id="nccl-cuda-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="Cuda failure",
        pattern=r"(?:NCCL WARN .{0,80}?|^(?:Last error: ?)?)Cuda failure (?:\d{1,9} )?'out of "
        r"memory'",
        meaning="NCCL found no memory on the GPU for its buffers.",
        fix="Leave 1 to 2 GiB for NCCL: a smaller batch, fewer process groups, or a smaller "
        "`NCCL_BUFFSIZE` (`export NCCL_BUFFSIZE=2097152`).",
        example="node01:30630:30661 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
        origin="source: src/include/alloc.h of NCCL 2.32",
    ),
    Signature(
        id="nccl-allocation-failed",
        code="oom-device",
        role=Role.CAUSE,
        needle="Failed to CUDA calloc",
        pattern=r"Failed to CUDA calloc (?:async )?(?P<bytes>\d+) bytes",
        meaning="NCCL found no {bytes} bytes on the GPU for its buffers.",
        fix="Leave 1 to 2 GiB for NCCL: a smaller batch, fewer process groups, or a smaller "
        "`NCCL_BUFFSIZE` (`export NCCL_BUFFSIZE=2097152`).",
        example="Failed to CUDA calloc async 608 bytes",
        origin="recalled: src/include/alloc.h of NCCL 2.19",
        weight=0.8,
    ),
    Signature(
        id="nccl-shm",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="shared memory segment",
        pattern=r"NCCL WARN .{0,80}?Error while (?:creating|attaching to) shared memory segment "
        r"(?P<segment>\S{1,100}) \(size (?P<bytes>\d{1,20})\)",
        meaning="NCCL found no {bytes} bytes in /dev/shm.",
        fix="Make /dev/shm larger (`docker run --shm-size=16g` or `--ipc=host`), and delete "
        "`/dev/shm/nccl-*` that dead jobs left.",
        example="node01:984:1021 [0] include/shm.h:48 NCCL WARN Error while creating shared "
        "memory segment /dev/shm/nccl-7CdbZ1 (size 9637888), error: No space left on device (28)",
        origin="source: src/misc/shmutils.cc of NCCL 2.32",
        needle_tells=False,
    ),
    Signature(
        id="nccl-shm-fallocate",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="Call to posix_fallocate failed",
        pattern=r"Call to posix_fallocate failed ?: No space left on device",
        meaning="NCCL found no room in /dev/shm.",
        fix="Make /dev/shm larger (`docker run --shm-size=16g` or `--ipc=host`), and delete "
        "`/dev/shm/nccl-*` that dead jobs left.",
        example="node01:984:1021 [0] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed "
        ": No space left on device",
        origin="recalled: src/misc/shmutils.cc of NCCL 2.19",
    ),
    Signature(
        id="nccl-shm-extend",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="failed to extend /dev/shm/nccl-",
        pattern=r"\bfailed to extend /dev/shm/nccl-\w{1,20}(?: to (?P<bytes>\d{1,15}) bytes)?",
        meaning="/dev/shm has no room for NCCL's buffers.",
        fix="`docker run --shm-size=16g` or `--ipc=host`; `df -h /dev/shm`.",
        example="node01:98:210 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend "
        "/dev/shm/nccl-a1B2c3 to 9637892 bytes",
        origin="recalled: src/misc/shmutils.cc of NCCL 2.20",
    ),
    Signature(
        id="nccl-ipc-handle",
        code="failed-nccl-init",
        role=Role.SYMPTOM,
        needle="ailed to open CUDA IPC handle",
        pattern=r"NCCL WARN [Ff]ailed to open CUDA IPC handle",
        meaning="NCCL could not share a GPU's memory between two processes.",
        fix="In containers use one IPC and PID namespace (`--ipc=host --pid=host`); otherwise "
        "`export NCCL_P2P_DISABLE=1`.",
        example="node01:98:210 [0] transport/p2p.cc:78 NCCL WARN failed to open CUDA IPC handle : "
        "30 unknown error",
        origin="recalled: src/transport/p2p.cc of NCCL 2.4",
        weight=0.6,
    ),
    Signature(
        id="nccl-peer-access",
        code="failed-peer-to-peer",
        role=Role.CAUSE,
        needle="peer access is not supported between",
        pattern=r"Cuda failure (?:\d{1,9} )?'peer access is not supported between these two "
        r"devices'",
        meaning="NCCL could not reach the memory of another GPU directly.",
        fix="`export NCCL_P2P_DISABLE=1`; `nvidia-smi topo -p2p r` shows which pairs can. In a "
        "virtual machine look at ACS and the IOMMU.",
        example="node01:30630:30661 [3] transport/p2p.cc:136 NCCL WARN Cuda failure 'peer access "
        "is not supported between these two devices'",
        origin="source: src/include/checks.h of NCCL 2.32",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="nccl-p2p-disabled-nvlink",
        code="topology-slow",
        role=Role.CAUSE,
        needle="P2P is disabled between NVLINK connected GPUs",
        pattern=r"P2P is disabled between NVLINK connected GPUs (?P<first>\d+) and (?P<second>\d+)",
        meaning="GPUs {first} and {second} share an NVLink but may not use it: NCCL suspects the "
        "hardware.",
        fix="Check the link with `nvidia-smi nvlink -s` and `nvidia-smi topo -p2p r`. Look for "
        "Xid 74 in `dmesg`, restart the fabric manager on HGX hosts.",
        example="node01:984:984 [0] graph/paths.cc:356 NCCL WARN P2P is disabled between NVLINK "
        "connected GPUs 0 and 1. This should not be the case given their connectivity, and is "
        "probably due to a hardware issue.",
        origin="source: src/graph/paths.cc of NCCL 2.32",
        severity="warning",
    ),
    Signature(
        id="nccl-way-disabled",
        code="topology-slow",
        role=Role.CAUSE,
        needle="_DISABLE set by environment to 1",
        pattern=r"NCCL INFO NCCL_(?P<way>P2P|IB|SHM)_DISABLE set by environment to 1\b",
        meaning="NCCL may not use a fast way between ranks: NCCL_{way}_DISABLE is set (P2P: "
        "NVLink and PCIe between GPUs; SHM: the host's memory; IB: InfiniBand and RoCE), so it "
        "falls back to a slower one, in the end to sockets.",
        fix="`unset NCCL_{way}_DISABLE` before the launcher, unless the fast way is known to be "
        "broken here.",
        example="node01:984:984 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
        origin="source: src/misc/param.cc of NCCL 2.32",
        severity="info",
        weight=0.8,
    ),
    Signature(
        id="nccl-nvls-not-bound",
        code="failed-nccl-init",
        role=Role.CAUSE,
        needle="Failed to bind NVLink SHARP (NVLS) Multicast memory",
        pattern=r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory of size \d{1,20}",
        meaning="NCCL could not use the multicast of the NVLink switches: the fabric manager or "
        "the switches are not set up, or the container may not use them.",
        fix="Set `NCCL_NVLS_ENABLE=0`, and let the administrator look at the fabric manager "
        "(`systemctl status nvidia-fabricmanager`).",
        example="NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : "
        "CUDA error 401 'the operation cannot be performed in the present state'",
        origin="source: src/transport/nvls.cc of NCCL 2.27",
    ),
    Signature(
        id="nccl-ecc",
        code="gpu-ecc",
        role=Role.CAUSE,
        needle="uncorrectable ECC error encountered",
        pattern=r"Cuda failure (?:\d{1,9} )?'uncorrectable ECC error encountered'",
        meaning="The memory of this rank's GPU has errors that could not be corrected.",
        fix="Drain the node; `nvidia-smi -q -d ECC` counts them. Reset or replace the GPU.",
        example="node01:30630:30661 [3] enqueue.cc:102 NCCL WARN Cuda failure 'uncorrectable ECC "
        "error encountered'",
        origin="source: src/include/checks.h of NCCL 2.32",
        weight=0.97,
        needle_tells=False,
    ),
)
