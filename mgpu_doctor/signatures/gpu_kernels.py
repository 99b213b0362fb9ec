"""GPU kernels that failed: assertions, illegal accesses, refused launches and library calls."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_BLOCKING = "Run it again with `CUDA_LAUNCH_BLOCKING=1`: the traceback then names the real line."
_LABELS = (
    "Check that labels and token ids are between 0 and the number of classes or rows - 1 (`assert "
    "labels.max() < num_classes`); one batch on the CPU names the line."
)
_ASSERTION = r"(?<![\w.])(?P<file>[\w.]{1,200}\.cu):(?P<line>\d+):? [^`]{1,400}Assertion `"
"""How a device's assertion begins. A search begins at most once for each file name."""


_CHECKED = (
    (
        "no-kernel",
        "failed-no-kernel-image",
        "98|200|209|218",
        98,
        "The program holds no code for this GPU",
        "Install a build that was made for this GPU: `rocminfo` or `nvidia-smi` shows which it is.",
    ),
    (
        "access",
        "failed-illegal-access",
        "4|7[0-9]|700|71[4-9]",
        700,
        "A GPU kernel accessed invalid memory, or failed while running",
        "Run with `CUDA_LAUNCH_BLOCKING=1` (AMD: `AMD_SERIALIZE_KERNEL=3`) to find the kernel.",
    ),
)
"""What numbers of CUDA's and HIP's results mean: name, code, numbers, one of them, meaning, fix."""


def _failed_check(runtime: str, result: tuple[str, str, str, int, str, str]) -> Signature:
    """A check in native code of a call's result (of `_CHECKED`): the number says what happened."""
    name, code, numbers, example, meaning, fix = result
    return Signature(
        id=f"{runtime}-check-{name}",
        code=code,
        role=Role.CAUSE,
        needle=f"== {runtime}Success",
        pattern=rf"Check failed: \w{{1,40}} == {runtime}Success \((?P<error>{numbers}) vs\. 0\)",
        meaning=f"{meaning} (error {{error}} of {runtime.upper()}).",
        fix=fix,
        example="F ./tensorflow/core/util/gpu_launch_config.h:170] Check failed: err == "
        f"{runtime}Success ({example} vs. 0)",
        origin="recalled: tensorflow/core/util/gpu_launch_config.h of TensorFlow 2.12",
        weight=0.75,
        needle_tells=False,
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="device-assert",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle=" error: device-side assert triggered",
        pattern=r"(?:CUDA|HIP) error: device-side assert triggered",
        meaning="A check inside a GPU kernel failed: usually a label or an index out of range. "
        "The traceback may name a later line.",
        fix=_LABELS + " " + _BLOCKING,
        example="torch.AcceleratorError: CUDA error: device-side assert triggered",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("device-side assert triggered",),
    ),
    Signature(
        id="assert-class-label",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="t >= 0 && t < n_classes` failed",
        pattern=_ASSERTION + r"t >= 0 && t < n_classes` failed",
        meaning="A label is negative or not below the number of classes.",
        fix="Make the last layer as wide as there are classes, count labels from 0, and give the "
        "loss `ignore_index` for padding. " + _LABELS,
        example="../aten/src/ATen/native/cuda/Loss.cu:240: "
        "nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [5,0,0] Assertion `t >= "
        "0 && t < n_classes` failed.",
        origin="source: aten/src/ATen/native/cuda/Loss.cu of torch 2.0",
        weight=0.97,
    ),
    Signature(
        id="assert-index",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="Assertion `",
        pattern=_ASSERTION + r"(?P<assertion>srcIndex < srcSelectDimSize"
        r"|(?=[^`]{0,80}\bindex\b)[^`]{1,205})` failed",
        meaning="An index is outside its tensor or embedding table ({assertion}).",
        fix=_LABELS,
        example="/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: "
        "block: [4,0,0], thread: [63,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        origin="source: aten/src/ATen/native/cuda/Indexing.cu of torch 2.4",
        weight=0.96,
    ),
    Signature(
        id="assert-probability",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="input_val >= zero && input_val <= one",
        pattern=_ASSERTION + r"input_val >= zero && input_val <= one` failed",
        meaning="Binary cross-entropy got a value outside 0 to 1 (or NaN).",
        fix="Use `binary_cross_entropy_with_logits` on the raw outputs, or put a sigmoid before "
        "the loss; check the outputs for NaN.",
        example="/pytorch/aten/src/ATen/native/cuda/Loss.cu:91: operator(): block: [0,0,0], "
        "thread: [3,0,0] Assertion `input_val >= zero && input_val <= one` failed.",
        origin="source: aten/src/ATen/native/cuda/Loss.cu of torch 2.12",
        weight=0.96,
    ),
    Signature(
        id="class-index-on-cpu",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="< n_classes' failed.",
        pattern=r"Assertion `(?:cur_target|t) >= 0 && (?:cur_target|t) < n_classes' failed\.",
        meaning="A label is negative or not below the number of classes.",
        fix=_LABELS,
        example="RuntimeError: Assertion `cur_target >= 0 && cur_target < n_classes' failed.  at "
        "/pytorch/aten/src/THNN/generic/ClassNLLCriterion.c:97",
        origin="recalled: aten/src/THNN/generic/ClassNLLCriterion.c of torch 1.4",
        weight=0.95,
    ),
    Signature(
        id="cuda-runtime-assert",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:59|710)\) ?: ",
        meaning="A kernel's assertion failed: nearly always an index or a class label out of "
        "range.",
        fix="Run with `CUDA_LAUNCH_BLOCKING=1`; check that labels are in 0..classes-1 and token "
        "ids below the vocabulary's size.",
        example="RuntimeError: cuda runtime error (59) : device-side assert triggered at "
        "aten/src/THC/generic/THCTensorMath.cu:41",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        needle_tells=False,
    ),
    Signature(
        id="thc-check-assert",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="THCudaCheck FAIL file=",
        pattern=r"THCudaCheck FAIL file=\S{1,200} line=\d{1,6} error=(?:59|710) : ",
        meaning="A check inside a GPU kernel failed, usually an index or label out of range.",
        fix=_LABELS + " `CUDA_LAUNCH_BLOCKING=1` shows the line.",
        example="THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=59 : "
        "device-side assert triggered",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="illegal-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle=" error: an illegal ",
        pattern=r"(?:CUDA|HIP) error: an illegal (?P<what>memory access|instruction) was "
        r"encountered",
        meaning="A kernel made an illegal {what} on the GPU: a bug in a custom kernel or "
        "extension, an index out of range, or failing hardware.",
        fix=_BLOCKING + " `compute-sanitizer --tool memcheck python …` names the kernel; leave "
        "`torch.compile` and custom kernels out once to narrow it down.",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=(
            "an illegal memory access was encountered",
            "an illegal instruction was encountered",
        ),
    ),
    Signature(
        id="launch-failure",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="CUDA error: ",
        pattern=r"CUDA error: (?P<what>unspecified launch failure|misaligned address|hardware "
        r"stack error|invalid program counter|operation not supported on global/shared address "
        r"space|the launch timed out and was terminated)",
        meaning="A GPU kernel failed ({what}): a bug in a kernel or extension, or failing "
        "hardware.",
        fix=_BLOCKING + " Look for `NVRM: Xid` lines in `dmesg`; `compute-sanitizer python …` "
        "names the kernel.",
        example="RuntimeError: CUDA error: unspecified launch failure",
        origin="source: c10/cuda/CUDAException.cpp of torch 2.12 and CUDA 13's cudaGetErrorString",
        more_heads=("unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED"),
    ),
    Signature(
        id="cuda-illegal-address",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="cudaErrorIllegalAddress",
        pattern=r"\bcudaErrorIllegalAddress\b(?! ?\()",
        meaning="A GPU kernel accessed invalid memory.",
        fix="`CUDA_LAUNCH_BLOCKING=1` shows the line; `compute-sanitizer` names the kernel.",
        example='CUDA error at kernel.cu:120 code=700(cudaErrorIllegalAddress) "cudaDeviceSync()"',
        origin="recalled: helper_cuda.h of CUDA's samples",
        weight=0.8,
    ),
    Signature(
        id="cuda-runtime-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="cuda runtime error (",
        pattern=r"\bcuda runtime error \((?:4|7[0-9]|700|71[4-9])\) ?: ",
        meaning="A kernel read or wrote memory that is not its own, or failed while running.",
        fix="Run with `CUDA_LAUNCH_BLOCKING=1` or `compute-sanitizer` to find the kernel; update "
        "its library.",
        example="RuntimeError: cuda runtime error (77) : an illegal memory access was encountered "
        "at aten/src/THC/THCGeneral.cpp:50",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="thc-check-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="THCudaCheck FAIL file=",
        pattern=r"THCudaCheck FAIL file=\S{1,200} line=\d{1,6} error=(?:4|7[0-9]|700|71[4-9]) : ",
        meaning="A GPU kernel accessed invalid memory.",
        fix="`CUDA_LAUNCH_BLOCKING=1` shows the line; look at custom kernels and indices.",
        example="THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=77 : an "
        "illegal memory access was encountered",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    ),
    *(_failed_check(runtime, result) for runtime in ("hip", "cuda") for result in _CHECKED),
    Signature(
        id="hsa-memory-fault",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="HSA_STATUS_ERROR_MEMORY_",
        pattern=r"HSA_STATUS_ERROR_MEMORY_(?:FAULT|APERTURE_VIOLATION)\b",
        meaning="A kernel on an AMD GPU accessed memory that is not its own.",
        fix="AMD_SERIALIZE_KERNEL=3 shows the call; look at custom kernels and indices.",
        example="Device::callbackQueue aborting with error : HSA_STATUS_ERROR_MEMORY_FAULT: Agent "
        "attempted to access an inaccessible address. code: 0x2b",
        origin="recalled: rocclr/device/rocm of ROCm 6",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="hsa-queue-exception",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="HSA_STATUS_ERROR_EXCEPTION",
        pattern=r"HSA_STATUS_ERROR_EXCEPTION\b",
        meaning="A kernel on an AMD GPU ended in a hardware exception.",
        fix="AMD_SERIALIZE_KERNEL=3 shows the call; look at custom kernels and indices.",
        example="Device::callbackQueue aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL "
        "operation resulted in a hardware exception. code: 0x1016",
        origin="recalled: rocclr/device/rocm of ROCm 6",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="tf-kernel-crashed",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="rror polling for event status",
        pattern=r"[Ee]rror polling for event status: .{1,80}?CUDA_ERROR_(?P<error>ILLEGAL_ADDRESS|"
        r"LAUNCH_FAILED|MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION)",
        meaning="A GPU kernel of TensorFlow crashed ({error}).",
        fix="Look at custom operations and `dmesg | grep Xid`; a full GPU and a driver that does "
        "not fit do this, too.",
        example="Error polling for event status: failed to query event: CUDA_ERROR_LAUNCH_FAILED: "
        "unspecified launch failure",
        origin="recalled: tensorflow/stream_executor/cuda/cuda_event.cc of TensorFlow 2.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="cublas-failed",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="CUBLAS_STATUS_EXECUTION_FAILED",
        pattern=r"CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `(?P<call>\w+)",
        meaning="A matrix product on the GPU failed ({call}): usually an error of a kernel before "
        "it.",
        fix=_BLOCKING + " If it moves from run to run, test the GPU (`nvidia-smi -q`, `dcgmi diag "
        "-r 3`).",
        example="RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling "
        "`cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.7,
    ),
    Signature(
        id="cublas-refused",
        code="failed-exception",
        role=Role.CAUSE,
        needle="CUDA error: CUBLAS_STATUS_",
        pattern=r"CUDA error: CUBLAS_STATUS_(?P<status>NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH) "
        r"when calling `(?P<call>\w+)",
        meaning="cuBLAS refused a call ({call}, {status}): usually libraries of two CUDA versions, "
        "a data type that the GPU lacks, or an index error before it.",
        fix="Look at `pip list | grep nvidia` and LD_LIBRARY_PATH for a second cuBLAS, and run "
        "once with `CUDA_LAUNCH_BLOCKING=1`.",
        example="RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm( "
        "handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="cudnn-failed",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="cuDNN error: CUDNN_STATUS_",
        pattern=r"cuDNN error: CUDNN_STATUS_(?P<status>EXECUTION_FAILED\w*|INTERNAL_ERROR\w*|"
        r"MAPPING_ERROR|NOT_INITIALIZED)",
        meaning="cuDNN failed ({status}): often the GPU's memory is full, an error of a kernel "
        "before it, or a cuDNN that does not fit torch.",
        fix="Look at the GPU's memory first (`nvidia-smi`). "
        + _BLOCKING
        + " `python -m torch.utils.collect_env` shows a second cuDNN.",
        example="RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        origin="source: aten/src/ATen/cuda/Exceptions.h of torch 2.12",
        weight=0.7,
        needle_tells=False,
        more_heads=("CUDNN_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_MAPPING_ERROR"),
    ),
    Signature(
        id="cuda-invalid-launch",
        code="failed-exception",
        role=Role.CAUSE,
        needle="CUDA error: ",
        pattern=r"\bCUDA error: (?P<what>invalid argument|invalid configuration argument|named "
        r"symbol not found|operation not permitted when stream is capturing|invalid resource "
        r"handle|unknown error)\b",
        meaning="CUDA refused a call or failed at one ({what}).",
        fix="Run with `CUDA_LAUNCH_BLOCKING=1` to find the call; for an unknown error, look at "
        "`dmesg | grep -i xid` first.",
        example="RuntimeError: CUDA error: invalid configuration argument",
        origin="recalled: driver_types.h of CUDA 12",
        weight=0.6,
    ),
)
