"""The cluster that a TensorFlow job describes: TF_CONFIG, its servers' ports, and TPU names."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_CONFIG = (
    'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
    '"task": {"type": "worker", "index": 0}}: the same cluster, and its own index, on every '
    "worker."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="tf-config-no-json",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle=", in _load_tf_config",
        pattern=r"\bFile \"[^\"]{0,300}tfconfig_cluster_resolver\.py\", line \d+, in "
        r"_load_tf_config",
        meaning="TF_CONFIG is not valid JSON.",
        fix=_CONFIG,
        example='  File "/venv/lib/python3.11/site-packages/tensorflow/python/distribute/'
        'cluster_resolver/tfconfig_cluster_resolver.py", line 48, in _load_tf_config',
        origin="made: MultiWorkerMirroredStrategy with TF_CONFIG='{bad', TensorFlow 2.21",
    ),
    Signature(
        id="tf-config-no-task",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="When `cluster_spec` is given, you must",
        pattern=r"When `cluster_spec` is given, you must also specify `task_type` and `task_id`",
        meaning="TF_CONFIG names the cluster, but not which task of it this process is.",
        fix=_CONFIG,
        example="ValueError: When `cluster_spec` is given, you must also specify `task_type` and "
        "`task_id`.",
        origin="made: MultiWorkerMirroredStrategy with a TF_CONFIG without task, TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="tf-config-index",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="exceeds the maximum id of ",
        pattern=r"The `task_id` (?P<index>\d+) exceeds the maximum id of (?P<task>\w+)",
        meaning="TF_CONFIG says that this is {task} {index}, but its cluster has fewer.",
        fix="Indices count from 0. " + _CONFIG,
        example="ValueError: The `task_id` 5 exceeds the maximum id of worker.",
        origin="made: index 5 in a cluster of two workers, TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="tf-config-type",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="Unrecognized task_type: ",
        pattern=r"Unrecognized task_type: (?P<task>.{1,60}), valid task types are: "
        r"(?P<valid>.{1,300})",
        meaning="TF_CONFIG names a task type that does not exist: {task}.",
        fix=_CONFIG,
        example="ValueError: Unrecognized task_type: work, valid task types are: ('chief', "
        "'worker', 'evaluator', 'ps', None)",
        origin="made: a TF_CONFIG with task type work, TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="tf-config-absent-type",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle=" not found in cluster_spec.",
        pattern=r"`task_type` '(?P<task>\w+)' not found in cluster_spec\.",
        meaning="TF_CONFIG says that this process is a {task}, but its cluster lists none.",
        fix=_CONFIG,
        example="ValueError: `task_type` 'ps' not found in cluster_spec.",
        origin="made: task type ps in a cluster of workers, TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="tf-config-rules",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="n TF_CONFIG",
        pattern=r"Error: (?:If \"cluster\" is set in TF_CONFIG, |\"(?:task|cluster|index|type)\" "
        r"must be set in TF_CONFIG|.{1,60} must be set in TF_CONFIG)",
        meaning="TF_CONFIG lacks a part or has one that it may not have.",
        fix=_CONFIG,
        example='ValueError: If "cluster" is set in TF_CONFIG, it must have one "chief" node.',
        origin="recalled: tensorflow/python/estimator/run_config.py of TensorFlow 1",
        weight=0.95,
    ),
    Signature(
        id="tf-config-frame",
        code="failed-tf-config",
        role=Role.SYMPTOM,
        needle="tfconfig_cluster_resolver.py",
        pattern=r"tfconfig_cluster_resolver\.py\", line \d{1,6}, in (?:cluster_spec|task_type|"
        r"task_id)\b",
        meaning="TF_CONFIG could not be read as a cluster.",
        fix=_CONFIG,
        example="  File "
        '"/venv/tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py", line '
        "138, in cluster_spec",
        origin="source: tensorflow/python/distribute of TensorFlow 2",
        weight=0.55,
        needle_tells=False,
    ),
    Signature(
        id="tf-task-undefined",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle=" was not defined in job ",
        pattern=r"Task (?P<task>\d{1,6}) was not defined in job \"(?P<job>\w{1,40})\"",
        meaning="The cluster has no task {task} in the job {job}.",
        fix=_CONFIG,
        example='InvalidArgumentError: Task 2 was not defined in job "ps"',
        origin="source: strings in the library of TensorFlow 2",
        weight=0.95,
    ),
    Signature(
        id="tf-job-undefined",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle=" was not defined in cluster",
        pattern=r"Job \"(?P<job>\w{1,40})\" was not defined in cluster",
        meaning="The cluster has no job {job}.",
        fix=_CONFIG,
        example='InvalidArgumentError: Job "worker" was not defined in cluster',
        origin="source: strings in the library of TensorFlow 2",
        weight=0.95,
    ),
    Signature(
        id="tf-task-type-invalid",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle=" in the cluster_spec",
        pattern=r"\bis not a valid task_(?:type in|id for task_type \w{1,40} in) the cluster_spec",
        meaning="The task that TF_CONFIG names is not in its cluster.",
        fix=_CONFIG,
        example="ValueError: 2 is not a valid task_id for task_type worker in the cluster_spec:",
        origin="recalled: tensorflow/python/estimator/run_config.py of TensorFlow 1",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="tf-cluster-no-mapping",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="`cluster` must be a dictionary mapping",
        pattern=r"`cluster` must be a dictionary mapping one or more",
        meaning="The cluster is no mapping of job names to lists of addresses.",
        fix=_CONFIG,
        example="TypeError: `cluster` must be a dictionary mapping one or more job names to lists "
        "of network addresses, or a `ClusterDef` protocol buffer",
        origin="source: tensorflow/python/training/server_lib.py of TensorFlow 2",
        weight=0.95,
    ),
    Signature(
        id="tf-port-unreadable",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="Could not parse port for local server from ",
        pattern=r"Could not parse port for local server from \"(?P<address>[^\"]{1,200})\"",
        meaning="The address {address} of this task has no port.",
        fix=_CONFIG,
        example='InvalidArgumentError: Could not parse port for local server from "worker0"',
        origin="source: strings in the library of TensorFlow 2",
        weight=0.95,
    ),
    Signature(
        id="tf-port-in-use",
        code="failed-port-in-use",
        role=Role.CAUSE,
        needle="Failed to add port to server: ",
        pattern=r"Failed to add port to server: No address added out of total \d+ resolved for "
        r"'[^']{0,64}:(?P<port>\d+)'",
        meaning="Port {port} of TF_CONFIG is taken on this machine, often by a worker that was "
        "left over.",
        fix="`ss -ltnp 'sport = :{port}'` shows who has it; end it, or choose another port.",
        example="E0000 00:00:1795288019.723207   23572 add_port.cc:83] Failed to add port to "
        "server: No address added out of total 1 resolved for '0.0.0.0:24051'",
        origin="made: MultiWorkerMirroredStrategy on a port in use, TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="tf-server-not-started",
        code="failed-tf-config",
        role=Role.SYMPTOM,
        needle="Could not start gRPC server",
        pattern=r"(?:UnknownError|UNKNOWN): Could not start gRPC server",
        meaning="The worker could not open its port: it is taken, or not an address of this "
        "machine.",
        fix="Check this worker's own entry in TF_CONFIG, and who listens there (`ss -ltnp`).",
        example="tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server",
        origin="made: MultiWorkerMirroredStrategy on a port in use, TensorFlow 2.21",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="tf-no-tpu-name",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="Please provide a TPU Name to connect to",
        pattern=r"Please provide a TPU Name to connect to",
        meaning="No TPU was named, and none was found from this machine's environment.",
        fix="Start it on a machine with a TPU, give TPUClusterResolver its name, or use another "
        "strategy.",
        example="ValueError: Please provide a TPU Name to connect to.",
        origin="made: TPUClusterResolver('') without a TPU, TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="tf-no-tpu",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="TPUs not found in the cluster",
        pattern=r"TPUs not found in the cluster\. Failed in initialization",
        meaning="There is no TPU here, or this TensorFlow was not built for one.",
        fix="Start it on a machine with a TPU and its TensorFlow, or use another strategy.",
        example="NotFoundError: TPUs not found in the cluster. Failed in initialization: No "
        "OpKernel was registered to support Op 'ConfigureDistributedTPU'",
        origin="made: TPUStrategy on a CPU, TensorFlow 2.21",
        weight=0.95,
    ),
)
