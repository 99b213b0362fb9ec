"""Programs, modules and libraries that are missing, do not fit together or cannot be built."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="command-not-found",
        code="failed-exception",
        role=Role.CAUSE,
        needle=": command not found",
        pattern=r"^\S{1,200}: (?:line \d{1,6}: )?(?P<program>torchrun|deepspeed|accelerate|mpirun|"
        r"mpiexec|horovodrun|srun|python3?|nvcc|ninja|singularity|docker|nvidia-smi|conda): "
        r"command not found\s*$",
        meaning="The program {program} is not installed here or not in PATH.",
        fix="Activate the environment in the job's script, or write the whole path.",
        example="bash: line 1: torchrun: command not found",
        origin="made: a script that calls a missing program, bash 5.2",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="arguments-required",
        code="failed-exception",
        role=Role.CAUSE,
        needle="the following arguments are required",
        pattern=r": error: the following arguments are required: (?P<names>.{1,120})",
        meaning="The script was started without arguments that it needs: {names}.",
        fix="Add them; `--help` lists all.",
        example="train.py: error: the following arguments are required: --data",
        origin="made: argparse without a required argument, Python 3.11",
        weight=0.8,
    ),
    Signature(
        id="module-not-runnable",
        code="failed-exception",
        role=Role.CAUSE,
        needle=": No module named ",
        pattern=r"^\S{0,200}python[\d.]{0,5}: No module named (?P<module>[\w.]{1,80})",
        meaning="Python has no module {module} to run.",
        fix="Activate the environment in the job's script, or install the package.",
        example="/usr/bin/python3: No module named torch.distributed.run",
        origin="made: python3 -m of a missing module, Python 3.11",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="script-not-found",
        code="failed-exception",
        role=Role.CAUSE,
        needle=": can't open file '",
        pattern=r"python[\w.]{0,20}: can't open file '(?P<file>[^']{1,300})': \[Errno "
        r"(?P<errno>\d+)\] (?P<why>[\w ]{1,60})",
        meaning="Python could not open the script {file}: {why}.",
        fix="Check the path, and that it is the same on every host and in the container.",
        example="/usr/bin/python3: can't open file '/home/user/trian.py': [Errno 2] No such file "
        "or directory",
        origin="made: torchrun of a script that is not there, CPython 3.11",
    ),
    Signature(
        id="module-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle="ModuleNotFoundError: No module named '",
        pattern=r"^ModuleNotFoundError: No module named '(?P<module>[\w.]{1,200})'",
        meaning="The package {module} is not installed in the environment of this process.",
        fix="Install it there: `python -m pip install ...` with the python that runs the job; on "
        "a cluster on every node.",
        example="ModuleNotFoundError: No module named 'flash_attn'",
        origin="made: import of a package that is not there, Python 3.11",
        weight=0.8,
    ),
    Signature(
        id="library-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle=": cannot open shared object file: No such",
        pattern=r"^(?:ImportError|OSError): (?P<library>[\w.+-]{1,120}): cannot open shared "
        r"object file: No such file or directory",
        meaning="The library {library} is not on this machine, or not where it is looked for.",
        fix="`ldconfig -p | grep` for it; set LD_LIBRARY_PATH or load the module. A CUDA library: "
        "the package was built for another CUDA version.",
        example="OSError: libcudart.so.11.0: cannot open shared object file: No such file or "
        "directory",
        origin="made: ctypes.CDLL of a library that is not there, Python 3.11",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="symbol-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle=": undefined symbol: ",
        pattern=r"^ImportError: (?P<library>\S{1,300}): undefined symbol: (?P<symbol>\w{1,300})",
        meaning="{library} was built against another version of the libraries that it uses, "
        "usually another torch.",
        fix="Build or install it again for the torch that is installed: `pip install "
        "--no-build-isolation --force-reinstall`.",
        example="ImportError: /venv/lib/python3.11/site-packages/flash_attn_2_cuda.so: undefined "
        "symbol: _ZN3c104cuda9SetDeviceEi",
        origin="made: import of a module with a symbol that is nowhere, Python 3.11",
    ),
    Signature(
        id="library-symbol-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" with link time reference",
        pattern=r"(?P<library>\S{1,200}): symbol (?P<symbol>\w{1,120}), version \S{1,80} not "
        r"defined in file \S{1,80} with link time reference",
        meaning="{library} and a library that it uses are of different versions.",
        fix="Look for a second CUDA in LD_LIBRARY_PATH and `pip list | grep nvidia`; reinstall "
        "torch.",
        example="OSError: libcublas.so.11: symbol cublasLtGetStatusString, version "
        "libcublasLt.so.11 not defined in file libcublasLt.so.11 with link time reference",
        origin="recalled: dl-lookup.c of glibc",
    ),
    Signature(
        id="glibc-too-old",
        code="failed-exception",
        role=Role.CAUSE,
        needle="' not found (required by ",
        pattern=r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found \(required by "
        r"(?P<library>[^)]{1,300})\)",
        meaning="{library} needs {version}, which is newer than this system's.",
        fix="Use a container or conda environment with a newer system, or an older build of it. "
        "For GLIBCXX: `conda install -c conda-forge libstdcxx-ng` and LD_LIBRARY_PATH.",
        example="ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found "
        "(required by /venv/lib/python3.11/site-packages/flash_attn_2_cuda.so)",
        origin="source: elf/dl-version.c of glibc 2.36",
        needle_tells=False,
    ),
    Signature(
        id="mkl-openmp-twice",
        code="failed-exception",
        role=Role.CAUSE,
        needle="OMP: Error #15: ",
        pattern=r"OMP: Error #15: Initializing (?P<library>\S{1,200}), but found "
        r"(?P<other>\S{1,200}) already initialized",
        meaning="Two OpenMP libraries were loaded, and one of them ended the process.",
        fix="Install numpy and torch from one source (all conda or all pip); "
        "KMP_DUPLICATE_LIB_OK=TRUE only hides it.",
        example="OMP: Error #15: Initializing libiomp5.so, but found libomp.so already "
        "initialized.",
        origin="source: i18n/en_US.txt of LLVM's OpenMP runtime 17",
    ),
    Signature(
        id="mkl-threading-layer",
        code="failed-exception",
        role=Role.CAUSE,
        needle="MKL_THREADING_LAYER=INTEL is incompatible with",
        pattern=r"MKL_THREADING_LAYER=INTEL is incompatible with \S{1,60}",
        meaning="Two OpenMP libraries are loaded that exclude each other.",
        fix="`export MKL_THREADING_LAYER=GNU`, or import numpy before torch.",
        example="Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible "
        "with libgomp.so.1 library.",
        origin="recalled: mkl-service 2.4",
        weight=0.85,
    ),
    Signature(
        id="recursion-limit",
        code="failed-exception",
        role=Role.CAUSE,
        needle="RecursionError: maximum recursion depth",
        pattern=r"^RecursionError: maximum recursion depth exceeded",
        meaning="Functions called each other without end.",
        fix="The repeated frames of the traceback show the circle.",
        example="RecursionError: maximum recursion depth exceeded",
        origin="made: a function that calls itself, Python 3.11",
        weight=0.8,
    ),
    Signature(
        id="extension-build-failed",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Error building extension '",
        pattern=r"RuntimeError: Error building extension '(?P<extension>[\w.-]{1,100})'",
        meaning="Compiling the extension {extension} at start failed.",
        fix="Read the compiler's lines above; CUDA_HOME must be the CUDA that torch was built "
        "with, and gcc one that nvcc accepts. Remove ~/.cache/torch_extensions before the next "
        "try.",
        example="RuntimeError: Error building extension 'fused_lamb'",
        origin="source: torch/utils/cpp_extension.py of torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="extension-missing",
        code="failed-exception",
        role=Role.CAUSE,
        needle="torch_extensions/",
        pattern=r"ImportError: \S{0,300}torch_extensions/\S{1,300}\.so: cannot open shared object "
        r"file",
        meaning="An extension that is compiled at start is not there: its build failed, or "
        "another rank was still building it.",
        fix="Remove ~/.cache/torch_extensions, build it once with one process, then start the "
        "job; set TORCH_EXTENSIONS_DIR to a local disk.",
        example="ImportError: /home/user/.cache/torch_extensions/utils/utils.so: cannot open "
        "shared object file: No such file or directory",
        origin="source: torch/utils/cpp_extension.py of torch 2.13",
        weight=0.85,
    ),
)
