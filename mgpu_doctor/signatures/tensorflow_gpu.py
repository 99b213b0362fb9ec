"""TensorFlow and XLA on GPUs and TPUs: memory, missing devices, cuDNN and cuBLAS."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LESS_MEMORY = (
    "Use a smaller batch, `tf.keras.mixed_precision.set_global_policy('mixed_bfloat16')`, or more "
    "replicas for the same global batch."
)
_GROWTH = (
    "`tf.config.experimental.set_memory_growth(gpu, True)` for every GPU before it is used, or "
    "TF_FORCE_GPU_ALLOW_GROWTH=true; end other processes on the GPU."
)
_CUDNN = (
    "Install the CUDA and cuDNN that this TensorFlow was built for, and set "
    "TF_FORCE_GPU_ALLOW_GROWTH=true: most of these come from a GPU whose memory is already taken."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="tf-out-of-memory",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="OOM when allocating tensor ",
        pattern=r"OOM when allocating tensor (?:with|of) shape ?(?P<shape>\[[\d,x ]*\])(?: and "
        r"type (?P<dtype>\w+))?(?: on \S*/device:(?P<device>\w+:\d+))?",
        meaning="TensorFlow found no memory for a tensor of shape {shape}.",
        fix=_LESS_MEMORY,
        example="tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
        "__wrapped__Fill_device_/job:localhost/replica:0/task:0/device:CPU:0}} OOM when "
        "allocating tensor with shape[1000000,10000000] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu [Op:Fill] name: ",
        origin="made: tf.ones((10**6, 10**7)) with TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="xla-out-of-memory",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle=": Out of memory while trying to allocate ",
        pattern=r"(?:RESOURCE_EXHAUSTED|Resource exhausted): Out of memory while trying to "
        r"allocate (?P<size>\d+ bytes|[\d.]+[KMGT]?i?B)",
        meaning="A program compiled by XLA found no memory for {size}.",
        fix=_LESS_MEMORY,
        example="RESOURCE_EXHAUSTED: Out of memory while trying to allocate 33762398024 bytes.",
        origin="source: xla/service/gpu of OpenXLA",
        weight=0.95,
    ),
    Signature(
        id="tf-allocator-full",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="ran out of memory trying to allocate ",
        pattern=r"Allocator \((?P<allocator>\w+)\) ran out of memory trying to allocate "
        r"(?P<size>[\d.]+[KMGT]?i?B) \(rounded to \d+\)",
        meaning="TensorFlow's allocator {allocator} had no {size} left.",
        fix=_LESS_MEMORY
        + " If much is free but in pieces (see the summary that follows), "
        + "TF_GPU_ALLOCATOR=cuda_malloc_async helps.",
        example="Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.25GiB (rounded to "
        "2415919104)requested by op AddV2",
        origin="source: tsl/framework/bfc_allocator.cc of TensorFlow 2.21",
        needle_tells=False,
    ),
    Signature(
        id="tf-memory-taken",
        code="memory-preallocated",
        role=Role.CAUSE,
        needle=" from device: CUDA_ERROR_OUT_OF_MEMORY",
        pattern=r"failed to allocate (?P<size>[\d.]+[KMGT]?i?B?) \((?P<bytes>\d+) bytes\) from "
        r"device: CUDA_ERROR_OUT_OF_MEMORY",
        meaning="TensorFlow wanted {size} of the GPU's memory at once and something else holds a "
        "part of it: often a second TensorFlow, which takes all it can get.",
        fix=_GROWTH,
        example="failed to allocate 5.96G (6404864512 bytes) from device: "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        origin="source: tensorflow/stream_executor/cuda/cuda_driver.cc of TensorFlow 2.8",
        severity="warning",
        weight=0.8,
        needs_failure=True,
    ),
    Signature(
        id="tf-destination-uninitialised",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="Dst tensor is not initialized.",
        pattern=r"Dst tensor is not initialized\.",
        meaning="A tensor could not be copied to the GPU, because no memory is free there.",
        fix=_GROWTH + " Feed the data with tf.data instead of one large array.",
        example="InternalError: Failed copying input tensor from "
        "/job:localhost/replica:0/task:0/device:CPU:0 to "
        "/job:localhost/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is "
        "not initialized.",
        origin="source: tensorflow/core/common_runtime/gpu/gpu_util.cc of TensorFlow 2.21",
    ),
    Signature(
        id="tf-convolution-algorithm",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="Failed to get convolution algorithm.",
        pattern=r"Failed to get convolution algorithm\. This is probably because "
        r"(?P<library>cuDNN|MIOpen) failed to initialize",
        meaning="{library} did not start: usually because the GPU's memory is taken, otherwise "
        "because its version does not fit.",
        fix=_GROWTH + " If that does not help, install the version that this TensorFlow needs: "
        "`pip install 'tensorflow[and-cuda]'`.",
        example="UnknownError: Failed to get convolution algorithm. This is probably because "
        "cuDNN failed to initialize, so try looking to see if a warning log message was printed "
        "above.",
        origin="source: tensorflow/core/kernels/conv_ops_gpu.h of TensorFlow 2.4",
    ),
    Signature(
        id="tf-no-algorithm",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="No algorithm worked!",
        pattern=r"\bNo algorithm worked!",
        meaning="cuDNN found no way to compute a convolution: usually too little free memory, or a "
        "precision that the GPU does not have.",
        fix=_GROWTH,
        example="OP_REQUIRES failed at conv_ops.cc:1120 : NOT_FOUND: No algorithm worked! Error "
        "messages:",
        origin="source: tensorflow/core/kernels/conv_ops.cc of TensorFlow 2.8",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="tf-cudnn-handle",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="ould not create cudnn handle: ",
        pattern=r"[Cc]ould not create cudnn handle: (?P<status>CUDNN_STATUS_\w+)",
        meaning="cuDNN did not start ({status}): usually because the GPU's memory is taken, "
        "otherwise because its version does not fit the driver.",
        fix=_GROWTH,
        example="E external/xla/xla/stream_executor/cuda/cuda_dnn.cc:439] Could not create cudnn "
        "handle: CUDNN_STATUS_INTERNAL_ERROR",
        origin="source: xla/stream_executor/cuda/cuda_dnn.cc of OpenXLA",
        needle_tells=False,
    ),
    Signature(
        id="tf-cublas-handle",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="failed to create cublas handle: ",
        pattern=r"failed to create cublas handle: (?P<status>CUBLAS_STATUS_\w+|cublas error)",
        meaning="cuBLAS did not start ({status}): usually because the GPU's memory is taken.",
        fix=_GROWTH,
        example="E tensorflow/stream_executor/cuda/cuda_blas.cc:232] failed to create cublas "
        "handle: CUBLAS_STATUS_NOT_INITIALIZED",
        origin="source: tensorflow/stream_executor/cuda/cuda_blas.cc of TensorFlow 2.8",
    ),
    Signature(
        id="tf-cudnn-version",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="Loaded runtime CuDNN library: ",
        pattern=r"Loaded runtime CuDNN library: (?P<loaded>[\d.]+\d) but source was compiled "
        r"with: (?P<wanted>[\d.]+\d)",
        meaning="cuDNN {loaded} was loaded, but this TensorFlow needs {wanted} or newer.",
        fix="`pip install 'tensorflow[and-cuda]'` in an environment of its own; look for an older "
        "cuDNN on LD_LIBRARY_PATH.",
        example="Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.3.0.  CuDNN "
        "library needs to have matching major version and equal or higher minor version.",
        origin="source: xla/stream_executor/cuda/cuda_dnn.cc of OpenXLA",
        needle_tells=False,
    ),
    Signature(
        id="tf-libdevice",
        code="failed-exception",
        role=Role.CAUSE,
        needle="libdevice not found at ",
        pattern=r"libdevice not found at \S{0,40}libdevice\.10\.bc",
        meaning="XLA found no CUDA toolkit, which it needs to compile.",
        fix="Point it to one: XLA_FLAGS=--xla_gpu_cuda_data_dir=/usr/local/cuda.",
        example="INTERNAL: libdevice not found at ./libdevice.10.bc",
        origin="source: xla/service/gpu/llvm_gpu_backend of OpenXLA",
        needle_tells=False,
    ),
    Signature(
        id="tf-gpu-libraries-missing",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="Cannot dlopen some GPU libraries.",
        pattern=r"Cannot dlopen some GPU libraries\.",
        meaning="TensorFlow could not load a CUDA library, so it trains on the CPU.",
        fix="`pip install 'tensorflow[and-cuda]'`. If this machine has no GPU, nothing is wrong.",
        example="Cannot dlopen some GPU libraries. Please make sure the missing libraries "
        "mentioned above are installed properly if you would like to use GPU.",
        origin="source: tensorflow/core/common_runtime/gpu/gpu_device.cc of TensorFlow 2.21",
        severity="warning",
        weight=0.5,
    ),
    Signature(
        id="tf-device-missing",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="Could not satisfy device specification ",
        pattern=r"Could not satisfy device specification '\S*/device:(?P<device>GPU:\d+)'",
        meaning="The program wants {device}, which this process does not have.",
        fix="Compare `tf.config.list_physical_devices('GPU')` with CUDA_VISIBLE_DEVICES, or let "
        "the strategy choose: `tf.distribute.MirroredStrategy()`.",
        example="Could not satisfy device specification "
        "'/job:localhost/replica:0/task:0/device:GPU:3'. enable_soft_placement=0. Supported "
        "device types [CPU]. All available devices [/job:localhost/replica:0/task:0/device:CPU:0].",
        origin="made: tf.device('/GPU:3') on a machine without GPUs, TensorFlow 2.21",
    ),
    Signature(
        id="xla-allocation-failed",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle=": Out of memory allocating ",
        pattern=r"(?:RESOURCE_EXHAUSTED|Resource exhausted): Out of memory allocating "
        r"(?P<size>\d{1,20}) bytes",
        meaning="A program compiled by XLA found no memory for {size} bytes.",
        fix=_LESS_MEMORY,
        example="XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 33762398024 bytes.",
        origin="source: strings in the library of TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="tpu-reservation-failed",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle=". That was not possible. There are ",
        pattern=r"Attempting to (?:reserve|allocate) (?P<size>[\d.]{1,12}[KMGT]?)B?(?: at the "
        r"bottom of memory)?\. That was not possible\. There are (?P<free>[\d.]{1,12}[KMGT]?)B? "
        r"free",
        meaning="A TPU had no {size} in one piece; {free} were free.",
        fix=_LESS_MEMORY,
        example="RESOURCE_EXHAUSTED: Attempting to reserve 5.21G at the bottom of memory. That "
        "was not possible. There are 5.60G free, 0B reserved, and 2.90G reservable.",
        origin="recalled: the TPU runtime of TensorFlow 2.8",
        weight=0.95,
    ),
    Signature(
        id="tpu-program-too-large",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="Ran out of memory in memory space ",
        pattern=r"Ran out of memory in memory space (?P<space>\w{1,12})\. +Used "
        r"(?P<used>[\d.]{1,12}[KMGT]?) of (?P<limit>[\d.]{1,12}[KMGT]?)",
        meaning="A program needs {used} of the device's memory ({space}), which has {limit}.",
        fix=_LESS_MEMORY,
        example="RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 19.10G of 15.48G "
        "hbm. Exceeded hbm capacity by 3.62G.",
        origin="recalled: the TPU compiler of XLA",
        weight=0.95,
    ),
    Signature(
        id="tf-context-out-of-memory",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle=" failed. Status: out of memory",
        pattern=r"CUDA runtime implicit initialization on GPU:(?P<device>\d{1,4}) failed\. "
        r"Status: out of memory",
        meaning="GPU {device} had no memory left for TensorFlow's context: another process fills "
        "it.",
        fix="See with `nvidia-smi` who holds it, also processes left over from an earlier run; "
        "TensorFlow takes all of each GPU that it sees unless `set_memory_growth` is set.",
        example="InternalError: CUDA runtime implicit initialization on GPU:2 failed. Status: out "
        "of memory",
        origin="recalled: tensorflow/core/common_runtime/gpu of TensorFlow 2.3",
    ),
    Signature(
        id="tf-launch-out-of-memory",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="Non-OK-status: ",
        pattern=r"Non-OK-status: (?:\w{1,40}::)?(?:Gpu|Cuda)LaunchKernel.{1,400}?"
        r"status: (?:Internal|INTERNAL): (?:CUDA error: )?out of memory",
        meaning="A GPU kernel could not be launched: the GPU has no memory left.",
        fix="See with `nvidia-smi` who holds it, also processes left over from an earlier run; "
        "reduce the batch per GPU, or leave memory for CUDA with a lower "
        "`per_process_gpu_memory_fraction`.",
        example="F tensorflow/core/kernels/pool_gpu.cu.cc:71] Non-OK-status: GpuLaunchKernel( "
        "PoolKernel<T>, blocks, 0, d.stream(), n, in, out) status: Internal: out of memory",
        origin="recalled: tensorflow/core/kernels of TensorFlow 2.3",
        needle_tells=False,
        more_heads=("status: Internal: out of memory", "status: INTERNAL: out of memory"),
    ),
    Signature(
        id="tf-stream-executor-memory",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="failed initializing StreamExecutor for ",
        pattern=r"failed initializing StreamExecutor for (?:CUDA )?device ordinal "
        r"(?P<device>\d{1,4}): .{0,160}?CUDA_ERROR_OUT_OF_MEMORY",
        meaning="GPU {device} had no memory left for TensorFlow's context: another process fills "
        "it.",
        fix="See with `nvidia-smi` who holds it, also processes left over from an earlier run; "
        "TensorFlow takes all of each GPU that it sees unless `set_memory_growth` is set.",
        example="InternalError: failed initializing StreamExecutor for CUDA device ordinal 2: "
        "Internal: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY",
        origin="recalled: tensorflow/core/common_runtime/gpu of TensorFlow 1.15",
        needle_tells=False,
    ),
    Signature(
        id="tf-dnn-initialisation",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="DNN library ",
        pattern=r"\bDNN library (?:initialization failed|is not found)",
        meaning="TensorFlow could not use cuDNN.",
        fix=_CUDNN,
        example="FailedPreconditionError: DNN library initialization failed. Look at the errors "
        "above for more details.",
        origin="recalled: xla/service/gpu of TensorFlow 2.12",
        weight=0.85,
    ),
    Signature(
        id="tf-no-blas",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="using StreamExecutor without BLAS support",
        pattern=r"Attempting to perform BLAS operation using StreamExecutor without BLAS support",
        meaning="TensorFlow could not start cuBLAS: usually the GPU's memory is already taken.",
        fix=_CUDNN,
        example="InternalError: Attempting to perform BLAS operation using StreamExecutor without "
        "BLAS support",
        origin="recalled: tensorflow/stream_executor of TensorFlow 2.8",
        weight=0.85,
    ),
    Signature(
        id="tf-cudnn-launch",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="cuDNN launch failure ",
        pattern=r"\bcuDNN launch failure : input shape ?\(",
        meaning="A cuDNN kernel could not be started.",
        fix=_CUDNN,
        example="InternalError: cuDNN launch failure : input shape ([32,64,56,56])",
        origin="recalled: tensorflow/core/kernels of TensorFlow 2.8",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="tf-convolve-algorithms",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="GetConvolveAlgorithms(",
        pattern=r"Check failed: stream->parent\(\)->GetConvolve(?:Backward\w{1,20})?Algorithms\(",
        meaning="cuDNN offered no algorithm: it could not be initialised, or memory is taken.",
        fix=_CUDNN,
        example="F tensorflow/core/kernels/conv_ops.cc:667] Check failed: "
        "stream->parent()->GetConvolveAlgorithms("
        "conv_parameters.ShouldIncludeWinogradNonfusedAlgo<T>(), &algorithms)",
        origin="recalled: tensorflow/core/kernels/conv_ops.cc of TensorFlow 1",
        weight=0.85,
    ),
    Signature(
        id="tf-cudnn-version-old",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle="Loaded runtime CuDNN library: ",
        pattern=r"Loaded runtime CuDNN library: \d{3,6} \(compatibility version \d{3,6}\) but "
        r"source was compiled with",
        meaning="TensorFlow was built for another cuDNN than the one that was loaded.",
        fix=_CUDNN,
        example="Loaded runtime CuDNN library: 5005 (compatibility version 5000) but source was "
        "compiled with 5110 (compatibility version 5100).",
        origin="recalled: tensorflow/stream_executor/cuda/cuda_dnn.cc of TensorFlow 1",
        needle_tells=False,
    ),
    Signature(
        id="tf-resource-exhausted-type",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="ResourceExhaustedError",
        pattern=r"\bResourceExhaustedError(?: \(see above for traceback\))?:? ?(?:Graph execution "
        r"error:)?\s{0,4}$",
        meaning="TensorFlow ran out of memory; the message with the sizes is cut off.",
        fix="Lower the batch per replica; TF_FORCE_GPU_ALLOW_GROWTH=true if other processes share "
        "the GPU.",
        example="tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution "
        "error:",
        origin="source: tensorflow/python/framework/errors_impl.py of TensorFlow 2",
        weight=0.6,
    ),
    Signature(
        id="xla-request-refused",
        code="failed-tf-resource-exhausted",
        role=Role.CAUSE,
        needle="RESOURCE_EXHAUSTED: Failed to allocate request",
        pattern=r"RESOURCE_EXHAUSTED: Failed to allocate request for (?P<size>[\d.]{1,12}\w{1,4})",
        meaning="Allocating {size} of device memory failed.",
        fix="Lower the batch per device; XLA_PYTHON_CLIENT_MEM_FRACTION if other processes share "
        "the GPU.",
        example="XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 1.50GiB "
        "(1610612736B) on device ordinal 0",
        origin="recalled: xla/tsl/framework of JAX 0.4",
    ),
    Signature(
        id="blas-launch-failed",
        code="failed-tf-cudnn",
        role=Role.CAUSE,
        needle=" launch failed",
        pattern=r"\bBlas (?:[SDCHZ]?GEMM|GEMV|xGEMM)\w{0,20} launch failed",
        meaning="cuBLAS could not run: usually another process took the GPU's memory, or CUDA does "
        "not fit the GPU.",
        fix="`nvidia-smi` shows other processes; set memory growth; use a CUDA that supports this "
        "GPU.",
        example="InternalError: Blas GEMM launch failed : a.shape=(32, 10), b.shape=(10, 20), "
        "m=32, n=20, k=10",
        origin="recalled: tensorflow/core/kernels/matmul_op.cc of TensorFlow 1.15",
        weight=0.75,
    ),
)
