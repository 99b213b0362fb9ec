"""torch.compile and Triton: compilation that fails, or happens too often."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_WITHOUT = (
    "Run the job without compiling to see whether it works (`TORCH_COMPILE_DISABLE=1`); "
    "`TORCHDYNAMO_VERBOSE=1` shows where it fails."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="dynamo-recompile-limit",
        code="recompiling",
        role=Role.CAUSE,
        needle="torch._dynamo hit config.",
        pattern=r"torch\._dynamo hit config\.(?P<option>(?:accumulated_)?(?:recompile|"
        r"cache_size)_limit) \((?P<limit>\d+)\)",
        meaning="A compiled function was compiled {limit} times for other shapes or values, and "
        "now runs uncompiled.",
        fix="Pad batches to few sizes, or use `torch.compile(..., dynamic=True)` or "
        "`mark_dynamic`. The lines below it name function and reason; `TORCH_LOGS=recompiles` "
        "lists all.",
        example="W1121 19:30:32.710000 13511 torch/_dynamo/convert_frame.py:1994] [0/2] "
        "torch._dynamo hit config.recompile_limit (2)",
        origin="made: a compiled function called with six lengths, torch 2.13",
        severity="warning",
        weight=0.8,
    ),
    Signature(
        id="dynamo-backend-failed",
        code="failed-exception",
        role=Role.CAUSE,
        needle="BackendCompilerFailed: backend=",
        pattern=r"BackendCompilerFailed: backend='(?P<backend>\w{1,60})' raised",
        meaning="The compiler {backend} of `torch.compile` failed; the next line says why.",
        fix=_WITHOUT,
        example="torch._dynamo.exc.BackendCompilerFailed: backend='bad' raised:",
        origin="made: torch.compile with a backend that raises, torch 2.13",
    ),
    Signature(
        id="dynamo-unsupported",
        code="failed-exception",
        role=Role.CAUSE,
        needle="torch._dynamo.exc.Unsupported: ",
        pattern=r"^torch\._dynamo\.exc\.Unsupported: (?P<what>.{1,200})",
        meaning="`torch.compile(fullgraph=True)` met code that it cannot trace ({what}).",
        fix="Fix the line below `from user code`, or drop `fullgraph=True`. " + _WITHOUT,
        example="torch._dynamo.exc.Unsupported: Failed to trace builtin operator",
        origin="made: a print in a function compiled with fullgraph=True, torch 2.13",
    ),
    Signature(
        id="inductor-failed",
        code="failed-exception",
        role=Role.CAUSE,
        needle="torch._inductor.exc.InductorError: ",
        pattern=r"^torch\._inductor\.exc\.InductorError: (?P<what>.{1,200})",
        meaning="Inductor, the compiler of `torch.compile`, failed: {what}.",
        fix="Install a C++ compiler (and Triton for GPUs) on every host if one is missing. "
        + _WITHOUT,
        example="torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler "
        "found in torch._inductor.config.cpp.cxx: (None, '/nonexistent/g++')",
        origin="made: torch.compile without a C++ compiler, torch 2.13",
    ),
    Signature(
        id="triton-illegal-access",
        code="failed-illegal-access",
        role=Role.CAUSE,
        needle="Triton Error [CUDA]: an illegal",
        pattern=r"Triton Error \[CUDA\]: an illegal (?P<what>memory access|instruction) was "
        r"encountered",
        meaning="A Triton kernel failed: illegal {what}. An earlier kernel may have caused it.",
        fix="Run it again with `CUDA_LAUNCH_BLOCKING=1`; without `torch.compile`, or without that "
        "kernel, to see which one it is.",
        example="RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        origin="source: third_party/nvidia/backend/driver.c of Triton 3",
    ),
    Signature(
        id="triton-out-of-memory",
        code="oom-device",
        role=Role.CAUSE,
        needle="Triton Error [CUDA]: out of memory",
        pattern=r"Triton Error \[CUDA\]: out of memory",
        meaning="No GPU memory was left to load a Triton kernel.",
        fix="Leave some GPU memory free: a smaller batch, or `torch.cuda.empty_cache()` before "
        "the first compiled step.",
        example="RuntimeError: Triton Error [CUDA]: out of memory",
        origin="source: third_party/nvidia/backend/driver.c of Triton 3",
    ),
    Signature(
        id="triton-kernel-invalid",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="Triton Error [CUDA]: device kernel image",
        pattern=r"Triton Error \[CUDA\]: device kernel image is invalid",
        meaning="Triton built a kernel for another GPU generation than the one in use, or took "
        "one from a cache of another machine.",
        fix="Delete `~/.triton/cache` (or set `TRITON_CACHE_DIR` per host), and use a Triton that "
        "knows the GPU.",
        example="RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        origin="source: third_party/nvidia/backend/driver.c of Triton 3",
    ),
    Signature(
        id="nvcc-unknown-architecture",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="Unsupported gpu architecture '",
        pattern=r"nvcc fatal\s{1,10}: Unsupported gpu architecture '(?P<architecture>\w{1,40})'",
        meaning="This nvcc cannot build code for {architecture}: the CUDA toolkit is older than "
        "the GPU, or no longer supports it.",
        fix="Use the CUDA toolkit of torch's own version (`torch.version.cuda`), or set "
        "TORCH_CUDA_ARCH_LIST to what it knows.",
        example="nvcc fatal   : Unsupported gpu architecture 'compute_120'",
        origin="recalled: nvcc of CUDA 12",
        weight=0.95,
    ),
    Signature(
        id="ptxas-unknown-architecture",
        code="failed-no-kernel-image",
        role=Role.CAUSE,
        needle="' is not defined for option 'gpu-name'",
        pattern=r"ptxas fatal\s{1,10}: Value '(?P<architecture>\w{1,40})' is not defined for "
        r"option 'gpu-name'",
        meaning="This ptxas cannot build code for {architecture}: it is older than the GPU.",
        fix="Use a newer Triton or torch, or set `TRITON_PTXAS_PATH` to the ptxas of a newer CUDA "
        "toolkit.",
        example="ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        origin="recalled: ptxas of CUDA 12",
        weight=0.95,
    ),
    Signature(
        id="triton-resources",
        code="failed-exception",
        role=Role.CAUSE,
        needle="OutOfResources: out of resource",
        pattern=r"OutOfResources: out of resource: (?P<what>shared memory|tensor memory|threads|"
        r"registers), Required: (?P<required>\d{1,12}), Hardware limit: (?P<limit>\d{1,12})",
        meaning="A Triton kernel needs more {what} ({required}) than this GPU has ({limit}).",
        fix="Use smaller block sizes or fewer stages, a newer version of the library, or another "
        "GPU.",
        example="triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: "
        "147456, Hardware limit: 101376.",
        origin="recalled: python/triton/runtime/errors.py of Triton 3.2",
        weight=0.95,
        needle_tells=False,
    ),
)
