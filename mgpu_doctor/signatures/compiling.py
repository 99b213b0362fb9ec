"""What torch.compile says when it compiles too often, or not at all."""

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
        pattern=r"torch\._dynamo hit config\.(?P<option>(?:accumulated_)?(?:recompile|cache_size)_"
        r"limit) \((?P<limit>\d+)\)",
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
        fix="Mend the line below `from user code`, or drop `fullgraph=True`. " + _WITHOUT,
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
        fix="Install a C++ compiler (and Triton for GPUs) on every host if one is "
        "missing. " + _WITHOUT,
        example="torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler "
        "found in torch._inductor.config.cpp.cxx: (None, '/nonexistent/g++')",
        origin="made: torch.compile without a C++ compiler, torch 2.13",
    ),
)
