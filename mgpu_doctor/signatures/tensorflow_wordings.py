"""Further words of TensorFlow, also of version 1: cluster configurations, cuDNN and BLAS,
shapes."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_CONFIG = (
    "Compare TF_CONFIG on all hosts: `cluster` lists all addresses, `task` names a job and an "
    "index that are in it."
)
_CUDNN = (
    "Install the CUDA and cuDNN that this TensorFlow was built for, and set "
    "TF_FORCE_GPU_ALLOW_GROWTH=true: most of these come from a GPU whose memory is already taken."
)


def _tensorflow(
    name: str,
    code: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str,
    role: Role = Role.CAUSE,
    weight: float = 0.85,
    needle_tells: bool = False,
) -> Signature:
    """A failure in TensorFlow's words."""
    return Signature(
        id=name,
        code=code,
        role=role,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        weight=weight,
        needle_tells=needle_tells,
    )


SIGNATURES: tuple[Signature, ...] = (
    _tensorflow(
        "tf-task-undefined",
        "failed-tf-config",
        " was not defined in job ",
        r"Task (?P<task>\d{1,6}) was not defined in job \"(?P<job>\w{1,40})\"",
        meaning="The cluster has no task {task} in the job {job}.",
        fix=_CONFIG,
        example='InvalidArgumentError: Task 2 was not defined in job "ps"',
        origin="source: strings in the library of TensorFlow 2",
        weight=0.95,
        needle_tells=True,
    ),
    _tensorflow(
        "tf-job-undefined",
        "failed-tf-config",
        " was not defined in cluster",
        r"Job \"(?P<job>\w{1,40})\" was not defined in cluster",
        meaning="The cluster has no job {job}.",
        fix=_CONFIG,
        example='InvalidArgumentError: Job "worker" was not defined in cluster',
        origin="source: strings in the library of TensorFlow 2",
        weight=0.95,
        needle_tells=True,
    ),
    _tensorflow(
        "tf-port-unreadable",
        "failed-tf-config",
        "Could not parse port for local server from ",
        r"Could not parse port for local server from \"(?P<address>[^\"]{1,200})\"",
        meaning="The address {address} of this task has no port.",
        fix=_CONFIG,
        example='InvalidArgumentError: Could not parse port for local server from "worker0"',
        origin="source: strings in the library of TensorFlow 2",
        weight=0.95,
        needle_tells=True,
    ),
    _tensorflow(
        "tf-task-type-invalid",
        "failed-tf-config",
        " in the cluster_spec",
        r"\bis not a valid task_(?:type in|id for task_type \w{1,40} in) the cluster_spec",
        meaning="The task that TF_CONFIG names is not in its cluster.",
        fix=_CONFIG,
        example="ValueError: 2 is not a valid task_id for task_type worker in the cluster_spec:",
        origin="recalled: tensorflow/python/estimator/run_config.py of TensorFlow 1",
        weight=0.95,
    ),
    _tensorflow(
        "tf-config-rules",
        "failed-tf-config",
        "n TF_CONFIG",
        r"Error: (?:If \"cluster\" is set in TF_CONFIG, |\"(?:task|cluster|index|type)\" must be "
        r"set "
        r"in TF_CONFIG|.{1,60} must be set in TF_CONFIG)",
        meaning="TF_CONFIG lacks a part or has one that it may not have.",
        fix=_CONFIG,
        example='ValueError: If "cluster" is set in TF_CONFIG, it must have one "chief" node.',
        origin="recalled: tensorflow/python/estimator/run_config.py of TensorFlow 1",
        weight=0.95,
    ),
    _tensorflow(
        "tf-cluster-no-mapping",
        "failed-tf-config",
        "`cluster` must be a dictionary mapping",
        r"`cluster` must be a dictionary mapping one or more",
        meaning="The cluster is no mapping of job names to lists of addresses.",
        fix=_CONFIG,
        example="TypeError: `cluster` must be a dictionary mapping one or more job names to lists "
        "of network addresses, or a `ClusterDef` protocol buffer",
        origin="source: tensorflow/python/training/server_lib.py of TensorFlow 2",
        weight=0.95,
        needle_tells=True,
    ),
    _tensorflow(
        "tf-config-frame",
        "failed-tf-config",
        "tfconfig_cluster_resolver.py",
        r"tfconfig_cluster_resolver\.py\", line \d{1,6}, in (?:cluster_spec|task_type|task_id)\b",
        meaning="TF_CONFIG could not be read as a cluster.",
        fix=_CONFIG,
        example='  File "/venv/tensorflow/python/distribute/cluster_resolver/'
        'tfconfig_cluster_resolver.py", line 138, in cluster_spec',
        origin="source: tensorflow/python/distribute of TensorFlow 2",
        role=Role.SYMPTOM,
        weight=0.55,
    ),
    _tensorflow(
        "tf-dnn-initialisation",
        "failed-tf-cudnn",
        "DNN library ",
        r"\bDNN library (?:initialization failed|is not found)",
        meaning="TensorFlow could not use cuDNN.",
        fix=_CUDNN,
        example="FailedPreconditionError: DNN library initialization failed. Look at the errors "
        "above for more details.",
        origin="recalled: xla/service/gpu of TensorFlow 2.12",
    ),
    _tensorflow(
        "tf-no-blas",
        "failed-tf-cudnn",
        "using StreamExecutor without BLAS support",
        r"Attempting to perform BLAS operation using StreamExecutor without BLAS support",
        meaning="TensorFlow could not start cuBLAS: mostly the GPU's memory is already taken.",
        fix=_CUDNN,
        example="InternalError: Attempting to perform BLAS operation using StreamExecutor without "
        "BLAS support",
        origin="recalled: tensorflow/stream_executor of TensorFlow 2.8",
        needle_tells=True,
    ),
    _tensorflow(
        "tf-cudnn-launch",
        "failed-tf-cudnn",
        "cuDNN launch failure ",
        r"\bcuDNN launch failure : input shape ?\(",
        meaning="A cuDNN kernel could not be started.",
        fix=_CUDNN,
        example="InternalError: cuDNN launch failure : input shape ([32,64,56,56])",
        origin="recalled: tensorflow/core/kernels of TensorFlow 2.8",
    ),
    _tensorflow(
        "tf-convolve-algorithms",
        "failed-tf-cudnn",
        "GetConvolveAlgorithms(",
        r"Check failed: stream->parent\(\)->GetConvolve(?:Backward\w{1,20})?Algorithms\(",
        meaning="cuDNN offered no algorithm: it could not be initialised, or memory is taken.",
        fix=_CUDNN,
        example="F tensorflow/core/kernels/conv_ops.cc:667] Check failed: "
        "stream->parent()->GetConvolveAlgorithms(conv_parameters.ShouldIncludeWinogradNonfused"
        "Algo<T>(), &algorithms)",
        origin="recalled: tensorflow/core/kernels/conv_ops.cc of TensorFlow 1",
    ),
    _tensorflow(
        "tf-cudnn-version-old",
        "failed-tf-cudnn",
        "Loaded runtime CuDNN library: ",
        r"Loaded runtime CuDNN library: \d{3,6} \(compatibility version \d{3,6}\) but source was "
        r"compiled with",
        meaning="TensorFlow was built for another cuDNN than the one that was loaded.",
        fix=_CUDNN,
        example="Loaded runtime CuDNN library: 5005 (compatibility version 5000) but source was "
        "compiled with 5110 (compatibility version 5100).",
        origin="recalled: tensorflow/stream_executor/cuda/cuda_dnn.cc of TensorFlow 1",
        weight=0.9,
    ),
    _tensorflow(
        "tf-logits-labels",
        "failed-tf-invalid-argument",
        "logits and labels must be broadcastable",
        r"logits and labels must be (?:broadcastable|same size)",
        meaning="The model's outputs and the labels have different shapes.",
        fix="Compare the number of classes with the last layer, and the batch of both.",
        example="InvalidArgumentError: logits and labels must be broadcastable: "
        "logits_size=[32,10] labels_size=[32,2]",
        origin="source: strings in the library of TensorFlow 2",
        weight=0.9,
        needle_tells=True,
    ),
    _tensorflow(
        "tf-uninitialised",
        "failed-exception",
        "ttempting to use uninitialized value",
        r"[Aa]ttempting to use uninitialized value (?P<variable>[\w/.:-]{1,200})",
        meaning="The variable {variable} was read before it got a value.",
        fix="Run `tf.global_variables_initializer()` first; under MonitoredSession create all "
        "variables before it.",
        example="FailedPreconditionError: Attempting to use uninitialized value beta1_power",
        origin="source: strings in the library of TensorFlow 2",
        weight=0.9,
    ),
    _tensorflow(
        "tf-histogram-nan",
        "loss-nan",
        "Nan in summary histogram for: ",
        r"Nan in summary histogram for: (?P<name>[\w/.:-]{1,200})",
        meaning="The values of {name} are not numbers: the training diverged.",
        fix="Lower the learning rate, clip gradients, and check the batch; "
        "`tf.debugging.enable_check_numerics()` finds the operation.",
        example="InvalidArgumentError: Nan in summary histogram for: layer1/weights",
        origin="source: strings in the library of TensorFlow 2",
        weight=0.9,
        needle_tells=True,
    ),
    _tensorflow(
        "jax-service-ends",
        "failed-tf-worker-missing",
        "JAX distributed service detected fatal errors",
        r"Terminating process because the JAX distributed service detected fatal errors",
        meaning="Another process of the JAX job ended, so this one was ended, too.",
        fix="Look at the logs of the other processes for the first failure.",
        example="Terminating process because the JAX distributed service detected fatal errors. "
        "This most likely indicates that another task died; see the other task logs for more "
        "details.",
        origin="recalled: xla/pjrt/distributed/client.h of JAX 0.4",
        role=Role.SYMPTOM,
        weight=0.55,
        needle_tells=True,
    ),
    _tensorflow(
        "xla-rendezvous-stuck",
        "failed-nccl-timeout",
        "threads to join the rendezvous, but not all of them",
        r"may be stuck\. Expected (?P<wanted>\d{1,5}) threads to join the rendezvous, but not all "
        r"of "
        r"them arrived on time",
        meaning="XLA waits for {wanted} devices to meet in a collective, and not all of them come.",
        fix="Look at the other processes: one of them failed or is slower. All must have the same "
        "XLA flags and reach each other's network.",
        example="This thread has been waiting for `initialize clique for rank 6` for 10 seconds "
        "and "
        "may be stuck. Expected 8 threads to join the rendezvous, but not all of them arrived on "
        "time.",
        origin="recalled: xla/service/rendezvous.cc of JAX 0.4",
        role=Role.SYMPTOM,
        weight=0.5,
    ),
    _tensorflow(
        "tf-resource-exhausted-type",
        "failed-tf-resource-exhausted",
        "ResourceExhaustedError",
        r"\bResourceExhaustedError(?: \(see above for traceback\))?:? ?(?:Graph execution "
        r"error:)?\s{0,4}$",
        meaning="TensorFlow ran out of memory; the message with the sizes is cut off.",
        fix="Lower the batch per replica; TF_FORCE_GPU_ALLOW_GROWTH=true if other processes share "
        "the GPU.",
        example="tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution "
        "error:",
        origin="source: tensorflow/python/framework/errors_impl.py of TensorFlow 2",
        weight=0.6,
    ),
    _tensorflow(
        "xla-request-refused",
        "failed-tf-resource-exhausted",
        "RESOURCE_EXHAUSTED: Failed to allocate request",
        r"RESOURCE_EXHAUSTED: Failed to allocate request for (?P<size>[\d.]{1,12}\w{1,4})",
        meaning="Allocating {size} of device memory failed.",
        fix="Lower the batch per device; XLA_PYTHON_CLIENT_MEM_FRACTION if other processes share "
        "the GPU.",
        example="XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 1.50GiB "
        "(1610612736B) on device ordinal 0",
        origin="recalled: xla/tsl/framework of JAX 0.4",
        weight=0.9,
        needle_tells=True,
    ),
    _tensorflow(
        "tf-deadline",
        "failed-tf-worker-missing",
        "DeadlineExceededError: ",
        r"errors_impl\.DeadlineExceededError: (?:Deadline Exceeded|deadline exceeded|Timed out)",
        meaning="Another task of the cluster did not answer in time.",
        fix="Look at the logs of the other tasks for the first failure.",
        example="tensorflow.python.framework.errors_impl.DeadlineExceededError: Deadline Exceeded",
        origin="source: strings in the library of TensorFlow 2",
        role=Role.SYMPTOM,
        weight=0.55,
    ),
)
