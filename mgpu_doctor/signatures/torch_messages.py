"""What torch and its neighbours print of arguments, files and builds that do not fit."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="cuda-unknown-environment",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="CUDA unknown error - this may be due to an incorrectly set up",
        pattern=(
            r"RuntimeError: CUDA unknown error - this may be due to an incorrectly set up "
            r"environment"
        ),
        meaning=(
            "CUDA could not start: the driver's modules are in a bad state, or "
            "CUDA_VISIBLE_DEVICES changed after the start."
        ),
        fix=(
            "`nvidia-smi`; reload the driver (`modprobe -r nvidia_uvm && modprobe "
            "nvidia_uvm`) or restart the host or container."
        ),
        example=(
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up "
            "environment"
        ),
        origin="recalled: c10/cuda/CUDAFunctions.cpp of torch 2.13",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="cuda-invalid-launch",
        code="failed-exception",
        role=Role.CAUSE,
        needle="CUDA error: ",
        pattern=(
            r"\bCUDA error: (?P<what>invalid argument|invalid configuration argument|named "
            r"symbol not found|operation not permitted when stream is capturing|invalid "
            r"resource handle|unknown error)\b"
        ),
        meaning="CUDA refused a call or failed at one ({what}).",
        fix=(
            "Run with `CUDA_LAUNCH_BLOCKING=1` to find the call; for an unknown error, look "
            "at `dmesg | grep -i xid` first."
        ),
        example="RuntimeError: CUDA error: invalid configuration argument",
        origin="recalled: driver_types.h of CUDA 12",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="cuda-invalid-function",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle=" error: invalid device function",
        pattern=r"\b(?:CUDA|HIP) error: invalid device function",
        meaning="This build or extension has no kernels for this GPU.",
        fix=(
            "Install or build it for this GPU's compute capability (`TORCH_CUDA_ARCH_LIST`; "
            "`PYTORCH_ROCM_ARCH` for ROCm)."
        ),
        example="RuntimeError: HIP error: invalid device function",
        origin="recalled: driver_types.h of CUDA 12",
        weight=0.85,
        needle_tells=False,
        more_heads=("invalid device function",),
    ),
    Signature(
        id="extension-build-failed",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Error building extension '",
        pattern=r"RuntimeError: Error building extension '(?P<extension>[\w.-]{1,100})'",
        meaning="Compiling the extension {extension} at start failed.",
        fix=(
            "Read the compiler's lines above; CUDA_HOME must be the CUDA that torch was "
            "built with, and gcc one that nvcc accepts. Remove ~/.cache/torch_extensions "
            "before the next try."
        ),
        example="RuntimeError: Error building extension 'fused_lamb'",
        origin="source: torch/utils/cpp_extension.py of torch 2.13",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="extension-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle="torch_extensions/",
        pattern=(
            r"ImportError: \S{0,300}torch_extensions/\S{1,300}\.so: cannot open shared "
            r"object file"
        ),
        meaning=(
            "An extension that is compiled at start is not there: its build failed, or "
            "another rank was still building it."
        ),
        fix=(
            "Remove ~/.cache/torch_extensions, build it once with one process, then start "
            "the job; set TORCH_EXTENSIONS_DIR to a local disk."
        ),
        example=(
            "ImportError: /home/user/.cache/torch_extensions/utils/utils.so: cannot open "
            "shared object file: No such file or directory"
        ),
        origin="source: torch/utils/cpp_extension.py of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="zero-ranks-disagree",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="disagreement between rank",
        pattern=(
            r"RuntimeError: disagreement between rank(?P<first>\d{1,6}) and "
            r"rank(?P<second>\d{1,6}): "
        ),
        meaning=(
            "ZeRO-3 found that rank {first} and rank {second} run other parts of the model, "
            "so their collectives do not fit."
        ),
        fix=(
            "Let every rank run the same modules in each step: a batch without images, or "
            "an expert without tokens, still needs a dummy pass."
        ),
        example=(
            "RuntimeError: disagreement between rank0 and rank3: rank0: [12, 44], rank3: [12, 45]"
        ),
        origin="recalled: deepspeed/runtime/zero/utils.py of DeepSpeed 0.14",
        weight=0.9,
        needle_tells=False,
        mutual=True,
    ),
    Signature(
        id="lightning-sigterm-exception",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="SIGTERMException",
        pattern=r"^(?:\w{1,40}\.){1,6}SIGTERMException\b",
        meaning=(
            "Lightning stopped because somebody asked the job to end (SIGTERM): the "
            "scheduler at a limit, or a person."
        ),
        fix=(
            "Look at the scheduler's reason (`scontrol show job`, `kubectl describe pod`); "
            "save checkpoints on SIGTERM."
        ),
        example="lightning.fabric.utilities.exceptions.SIGTERMException",
        origin="source: lightning/pytorch/trainer/connectors/signal_connector.py of Lightning 2.4",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="leaf-modified-in-place",
        code="failed-exception",
        role=Role.CAUSE,
        needle="that requires grad is being used in an in-place operation",
        pattern=(
            r"a (?:view of a )?leaf Variable that requires grad is being used in an "
            r"in-place operation"
        ),
        meaning="A trained parameter was changed in place outside `torch.no_grad()`.",
        fix="Do it under `with torch.no_grad():`, also for a broadcast of parameters.",
        example=(
            "RuntimeError: a leaf Variable that requires grad is being used in an in-place "
            "operation."
        ),
        origin="source: torch/csrc/autograd/VariableTypeUtils.h of torch 2.13",
        weight=0.9,
    ),
    Signature(
        id="target-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Target size (torch.Size(",
        pattern=(
            r"ValueError: Target size \(torch\.Size\((?P<target>\[[\d, ]{0,60}\])\)\) must "
            r"be the same as input size \(torch\.Size\((?P<input>\[[\d, ]{0,60}\])\)\)"
        ),
        meaning="The loss got predictions of shape {input} and targets of shape {target}.",
        fix="Bring both to one shape (`squeeze(-1)`, `unsqueeze(1)`).",
        example=(
            "ValueError: Target size (torch.Size([4])) must be the same as input size "
            "(torch.Size([4, 1]))"
        ),
        origin="source: torch/nn/functional.py of torch 2.13",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="weights-unreadable",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Unable to load weights from pytorch checkpoint file",
        pattern=r"OSError: Unable to load weights from pytorch checkpoint file for",
        meaning="The file of the weights is damaged or cut off.",
        fix="Compare its size with the source and copy or download it again.",
        example="OSError: Unable to load weights from pytorch checkpoint file for '/models/a'",
        origin="recalled: transformers/modeling_utils.py of transformers 4.40",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="pickle-cut-off",
        code="failed-checkpoint",
        role=Role.SYMPTOM,
        needle="EOFError: Ran out of input",
        pattern=r"EOFError: Ran out of input",
        meaning=(
            "A file or a message that was unpickled is empty or cut off: a checkpoint that "
            "was not written to its end, or a parent process that ended."
        ),
        fix=(
            "Look for an error of another process first; then check the size of the file in "
            "the traceback."
        ),
        example="EOFError: Ran out of input",
        origin="source: Modules/_pickle.c of CPython 3.11",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="shm-write",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="unable to write to file </torch_",
        pattern=(
            r"RuntimeError: unable to (?:write to file|mmap \d{1,20} bytes from file) "
            r"</torch_"
        ),
        meaning="A tensor could not be put into shared memory: /dev/shm is full.",
        fix=(
            "Start the container with `--shm-size=16g` or `--ipc=host`, or use fewer loader "
            "workers."
        ),
        example="RuntimeError: unable to write to file </torch_812_4471>",
        origin="source: aten/src/ATen/MapAllocator.cpp of torch 1.13",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="store-stop-waiting",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="Stop_waiting response is expected",
        pattern=r"RuntimeError: Stop_waiting response is expected",
        meaning=(
            "The store of the rendezvous ended while this rank waited: the process that "
            "holds it failed."
        ),
        fix="Look at rank 0 for the first error.",
        example="RuntimeError: Stop_waiting response is expected",
        origin="source: torch/csrc/distributed/c10d/TCPStore.cpp of torch 1.13",
        weight=0.6,
    ),
    Signature(
        id="blas-launch-failed",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle=" launch failed",
        pattern=r"\bBlas (?:[SDCHZ]?GEMM|GEMV|xGEMM)\w{0,20} launch failed",
        meaning=(
            "cuBLAS could not run: mostly another process took the GPU's memory, or CUDA "
            "does not fit the GPU."
        ),
        fix=(
            "`nvidia-smi` shows other processes; set memory growth; use a CUDA that "
            "supports this GPU."
        ),
        example=(
            "InternalError: Blas GEMM launch failed : a.shape=(32, 10), b.shape=(10, 20), "
            "m=32, n=20, k=10"
        ),
        origin="recalled: tensorflow/core/kernels/matmul_op.cc of TensorFlow 1.15",
        weight=0.75,
        needle_tells=False,
    ),
    Signature(
        id="renamed-file-raced",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Error: [Errno ",
        pattern=(
            r"\bFile(?:NotFound|Exists)Error: \[Errno (?:2|17)\] .{1,40}: "
            r"'(?P<file>[^']{1,300})' -> '(?P<target>[^']{1,300}\.(?:pt|pth|ckpt|tar|"
            r"pth\.tar|safetensors|bin|h5))'"
        ),
        meaning="The checkpoint {target} could not be renamed or linked, mostly because several "
        "processes do it at once.",
        fix=("Let only global rank 0 save (`RANK`, not `LOCAL_RANK`), with a barrier after it."),
        example=(
            "FileNotFoundError: [Errno 2] No such file or directory: 'run1/tmp.pth.tar' -> "
            "'run1/last.pth.tar'"
        ),
        origin="source: os.rename of CPython 3.11",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="triton-resources",
        code="failed-exception",
        role=Role.CAUSE,
        needle="OutOfResources: out of resource",
        pattern=(
            r"OutOfResources: out of resource: (?P<what>shared memory|tensor memory|threads|"
            r"registers), Required: (?P<required>\d{1,12}), Hardware limit: "
            r"(?P<limit>\d{1,12})"
        ),
        meaning="A Triton kernel needs more {what} ({required}) than this GPU has ({limit}).",
        fix=(
            "Use smaller block sizes or fewer stages, a newer version of the library, or "
            "another GPU."
        ),
        example=(
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, "
            "Required: 147456, Hardware limit: 101376."
        ),
        origin="recalled: python/triton/runtime/errors.py of Triton 3.2",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="tf-device-not-assignable",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Cannot assign a device for operation",
        pattern=r"InvalidArgumentError: .{0,40}?Cannot assign a device for operation",
        meaning=(
            "TensorFlow cannot place an operation: the named device does not exist, or has "
            "no kernel for it."
        ),
        fix=(
            "Check the `tf.device` names against `tf.config.list_physical_devices()`, or "
            "use soft placement."
        ),
        example=(
            "InvalidArgumentError: Cannot assign a device for operation dense/kernel: node "
            "was explicitly assigned to /device:GPU:4"
        ),
        origin="source: tensorflow/core/common_runtime/placer.cc of TensorFlow 2.15",
        weight=0.9,
        needle_tells=False,
    ),
    Signature(
        id="library-symbol-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" with link time reference",
        pattern=r"(?P<library>\S{1,200}): symbol (?P<symbol>\w{1,120}), version \S{1,80} not "
        r"defined in "
        r"file \S{1,80} with link time reference",
        meaning="{library} and a library that it uses are of different versions.",
        fix="Look for a second CUDA in LD_LIBRARY_PATH and `pip list | grep nvidia`; reinstall "
        "torch.",
        example="OSError: libcublas.so.11: symbol cublasLtGetStatusString, version "
        "libcublasLt.so.11 not defined in file libcublasLt.so.11 with link time reference",
        origin="recalled: dl-lookup.c of glibc",
    ),
)
