"""What TensorFlow says of its cluster and files: TF_CONFIG, missing workers, checkpoints."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_WORKER_LOG = "Look at the log of the task that went away: it failed first. Then start all anew."
_CONFIG = (
    'TF_CONFIG must be JSON such as {{"cluster": {{"worker": ["host1:12345", "host2:12345"]}}, '
    '"task": {{"type": "worker", "index": 0}}}}: the same cluster, and its own index, on every '
    "worker."
)

_SESSION_BEGAN = ("Start master session", "unning local_init_op")
"""What TensorFlow 1 prints when the wait for a session is over."""

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="tf-ps-worker-lost",
        code="worker-lost",
        role=Role.CAUSE,
        needle="ERROR:tensorflow:Worker /job:",
        pattern=r"ERROR:tensorflow:Worker (?P<task>/job:worker/replica:\d+/task:\d+) failed with "
        r"\w+\(\)",
        meaning="{task} went away while it carried out a closure. The chief gives its closures to "
        "the other workers and goes on without it, or with it once it is started again.",
        fix="Look at the log of that task, and for an out-of-memory kill or a preemption on its "
        "host. Started again with the same TF_CONFIG, it joins again.",
        example="ERROR:tensorflow:Worker /job:worker/replica:0/task:1 failed with "
        "UnavailableError():Socket closed",
        origin="made: SIGKILL of a worker under ParameterServerStrategy, TensorFlow 2.21",
        severity="warning",
        weight=0.95,
    ),
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
        id="tf-heartbeats-stopped",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="(stopped sending heartbeats)",
        pattern=r"(?:Error reported from /job:(?P<job>\w+)/(?:replica:\d+/)?task:(?P<task>\d+): )?"
        r"The following tasks are unhealthy \(stopped sending heartbeats\)",
        meaning="Another task of the cluster went away; the next line names it.",
        fix=_WORKER_LOG,
        example="Collective ops is aborted by: Error reported from /job:worker/task:1: The "
        "following tasks are unhealthy (stopped sending heartbeats):",
        origin="made: worker 1 of two killed during training, TensorFlow 2.21",
        more_heads=("The following tasks are unhealthy",),
    ),
    Signature(
        id="tf-heartbeat-timeout",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="heartbeat timeout. This indicates that",
        pattern=r"/job:(?P<job>\w+)/replica:\d+/task:(?P<task>\d+) heartbeat timeout\. This "
        r"indicates that the remote task has failed, got preempted, or crashed",
        meaning="Task {task} of {job} went away.",
        fix=_WORKER_LOG,
        example="/job:worker/replica:0/task:1 heartbeat timeout. This indicates that the remote "
        "task has failed, got preempted, or crashed unexpectedly. Check the task logs for an "
        "earlier error or scheduler events (e.g. preemption, eviction) to debug further.",
        origin="source: xla/pjrt/distributed/coordination of TensorFlow 2.21",
    ),
    Signature(
        id="tf-worker-absent",
        code="failed-tf-worker-missing",
        role=Role.CAUSE,
        needle=" did not come within ",
        pattern=r"^tf-\w+: worker (?P<worker>\d+) \((?P<address>[^()\s]{1,200})\).{0,600} did not "
        r"come within (?P<seconds>[\d.]{1,12}) s$",
        meaning="Worker {worker} never came: nobody answered at {address} within {seconds} s, and "
        "the others waited.",
        fix="Start worker {worker}, or look at its own log for why it ended; is {address} its "
        "address in everybody's TF_CONFIG, and does a firewall stand between? `nc -vz HOST PORT` "
        "tries it.",
        example="tf-multiworker: worker 1 (localhost:41332) did not come within 10 s",
        origin="made: tf-multiworker without its second worker, TensorFlow 2.21",
        mutual=True,
        needle_tells=False,
    ),
    Signature(
        id="tf-barrier-timeout",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="Barrier timed out. Id: ",
        pattern=r"Barrier timed out\. Id: (?P<barrier>[^.]{1,120})\.",
        meaning="Not every worker came to {barrier} in time: one is missing, slow or elsewhere.",
        fix="Compare the workers' logs; the first that stopped is the cause.",
        example="Barrier timed out. Id: WaitForAllTasks::11718789007923182589::0. This usually "
        "happens because a task triggered the barrier too early or too slowly. Please look at the "
        "task logs (both timed out and first task) to debug further.",
        origin="source: xla/pjrt/distributed/coordination of TensorFlow 2.21",
        weight=0.8,
    ),
    Signature(
        id="tf-worker-restarted",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="with a different incarnation. It has",
        pattern=r"/task:(?P<task>\d+) unexpectedly tried to connect with a different incarnation\. "
        r"It has likely restarted",
        meaning="Task {task} was started again while the others went on; they cannot take it back.",
        fix=_WORKER_LOG,
        example="/job:worker/replica:0/task:1 unexpectedly tried to connect with a different "
        "incarnation. It has likely restarted.",
        origin="source: xla/pjrt/distributed/coordination of TensorFlow 2.21",
    ),
    Signature(
        id="tf-collective-aborted",
        code="failed-tf-collective",
        role=Role.SYMPTOM,
        needle="Collective ops is aborted by: ",
        pattern=r"Collective ops is aborted by: (?P<reason>(?!Error reported from).{1,200})",
        meaning="A collective was given up, because another worker failed or cannot be reached: "
        "{reason}",
        fix=_WORKER_LOG,
        example="W0000 00:00:1795287979.656191   22712 local_rendezvous.cc:412] Local rendezvous "
        "is aborting with status: UNAVAILABLE: Collective ops is aborted by: recvmsg:Connection "
        "reset by peer",
        origin="made: worker 0 of two killed during training, TensorFlow 2.21",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="tf-no-connection",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="failed to connect to all addresses",
        pattern=r"failed to connect to all addresses(?:; last error: (?P<reason>.{1,160}))?",
        meaning="A worker of the cluster does not answer.",
        fix="Is that worker running, is its address in TF_CONFIG right, does a firewall stand "
        "between? `nc -vz HOST PORT` tries it.",
        example="UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: "
        "ipv4:127.0.0.1:24001: Failed to connect to remote host: Connection refused",
        origin="source: gRPC 1.74, in TensorFlow 2.21",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="tf-sigterm",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="SIGTERM caught at ",
        pattern=r"preemption_notifier\.cc:\d+\] SIGTERM caught at (?P<time>\S{10,40})",
        meaning="This worker was asked to end at {time}: by the scheduler, a person or the cloud.",
        fix="Ask the scheduler (`kubectl describe pod`, `scontrol show job`); "
        "`tf.distribute.experimental.PreemptionCheckpointHandler` saves before the end.",
        example="W0000 00:00:1795289423.660207   21916 preemption_notifier.cc:90] SIGTERM caught "
        "at 2026-11-21T19:30:23.660205159+00:00",
        origin="made: SIGTERM to a waiting worker, TensorFlow 2.21",
        weight=0.5,
    ),
    Signature(
        id="keras-per-replica",
        code="failed-tf-collective",
        role=Role.CAUSE,
        needle="distribute.values.PerReplica'>",
        pattern=r"with an unsupported type \(<class 'tensorflow\.python\.distribute\.values\."
        r"PerReplica'>\) to a Tensor",
        meaning="Keras 3 cannot `fit` under this strategy: it does not handle data of several "
        "workers (MultiWorkerMirroredStrategy).",
        fix="Set TF_USE_LEGACY_KERAS=1 with the package tf_keras, or write the training loop with "
        "`strategy.run`.",
        example="}) with an unsupported type (<class "
        "'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
        origin="made: fit under MultiWorkerMirroredStrategy with Keras 3.15, TensorFlow 2.21",
    ),
    Signature(
        id="tf-checkpoint-absent",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Unsuccessful TensorSliceReader constructor",
        pattern=r"Unsuccessful TensorSliceReader constructor: Failed to find any matching files "
        r"for (?P<file>\S{1,300})",
        meaning="There is no checkpoint {file}.",
        fix="Give the prefix without `.index`; `tf.train.latest_checkpoint(folder)` finds the "
        "newest. Every worker must see the same folder.",
        example="tensorflow.python.framework.errors_impl.NotFoundError: Unsuccessful "
        "TensorSliceReader constructor: Failed to find any matching files for /data/ckpt/none",
        origin="made: restore of a checkpoint that is not there, TensorFlow 2.21",
    ),
    Signature(
        id="tf-checkpoint-shape",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="Received incompatible tensor with shape ",
        pattern=r"Received incompatible tensor with shape (?P<saved>\([\d, ]*\)) when attempting "
        r"to restore variable with shape (?P<wanted>\([\d, ]*\)) and name (?P<name>\S{1,120}?)\.?$",
        meaning="The checkpoint's {name} has shape {saved}, the model's has {wanted}: it is of "
        "another model.",
        fix="Build the model as it was when it was saved, or leave that layer out.",
        example="ValueError: Received incompatible tensor with shape (3,) when attempting to "
        "restore variable with shape (5,) and name Variable:0.",
        origin="made: a variable of 3 restored into one of 5, TensorFlow 2.21",
    ),
    Signature(
        id="tf-checkpoint-damaged",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="file is too short to be an sstable",
        pattern=r"file is too short to be an sstable",
        meaning="The checkpoint's index is cut off: it was not written to its end.",
        fix="Use the checkpoint before it; the disk may have been full or the job killed.",
        example="tensorflow.python.framework.errors_impl.OpError: file is too short to be an "
        "sstable",
        origin="made: restore of a checkpoint whose index was cut, TensorFlow 2.21",
    ),
    Signature(
        id="keras-weights-mismatch",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle=" objects could not be loaded.",
        pattern=r"A total of (?P<count>\d+) objects could not be loaded\.",
        meaning="{count} layers of the saved weights do not fit the model.",
        fix="Build the model as it was when it was saved, or `load_weights(..., "
        "skip_mismatch=True)` on purpose.",
        example="ValueError: A total of 1 objects could not be loaded. Example error message for "
        "object <Dense name=dense_1, built=True>:",
        origin="made: weights of a layer of 2 loaded into one of 3, Keras 3.15",
        needle_tells=False,
    ),
    Signature(
        id="keras-model-absent",
        code="failed-checkpoint",
        role=Role.CAUSE,
        needle="File not found: filepath=",
        pattern=r"File not found: filepath=(?P<file>\S{1,300}?)\. Please ensure the file is an "
        r"accessible `\.keras` zip file",
        meaning="There is no {file}, or it is cut off or of another format.",
        fix="`unzip -t {file}` tells whether it is whole; it may have been written by a job that "
        "was killed, or by another version of Keras.",
        example="ValueError: File not found: filepath=/data/model.keras. Please ensure the file is "
        "an accessible `.keras` zip file.",
        origin="made: load_model of a file of letters, Keras 3.15",
    ),
    Signature(
        id="tf-record-damaged",
        code="failed-exception",
        role=Role.CAUSE,
        needle="ed record at ",
        pattern=r"\b(?P<how>corrupted|truncated) record at (?P<offset>\d+)",
        meaning="A TFRecord file of the data set is {how} at byte {offset}, or no TFRecord file.",
        fix="Find the file (read them one by one) and write it again; "
        "`ds.ignore_errors(log_warning=True)` skips it.",
        example="tensorflow.python.framework.errors_impl.DataLossError: {{function_node "
        "__wrapped__IteratorGetNext_output_types_1_device_/job:localhost/replica:0/task:0/"
        "device:CPU:0}} corrupted record at 0 (Is this even a TFRecord file?) [Op:IteratorGetNext] "
        "name: ",
        origin="made: a file of letters read as TFRecord, TensorFlow 2.21",
        needle_tells=False,
    ),
    Signature(
        id="tf-session-waits",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="CreateSession still waiting for response",
        pattern=r"CreateSession still waiting for response",
        meaning="The session cannot begin: a task of the cluster does not answer.",
        fix="Start the task that the line names, or correct the addresses in the cluster's "
        "specification; each task must reach every other one. `device_filters` spare workers the "
        "wait for each other.",
        example="CreateSession still waiting for response from worker: /job:ps/replica:0/task:1",
        origin="source: tensorflow/core/distributed_runtime/master.cc of TensorFlow 2.21",
        least=2,
        weight=0.8,
        overcome_by=_SESSION_BEGAN,
    ),
    Signature(
        id="tf-model-not-ready",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="Waiting for model to be ready.",
        pattern=r"Waiting for model to be ready\. +Ready_for_local_init_op: +(?!None)\S",
        meaning="A worker waits for the chief to initialise the model's variables.",
        fix="Start the chief (worker 0 where there is none), and look at its own log: it may have "
        "failed or wait for a parameter server.",
        example="INFO:tensorflow:Waiting for model to be ready.  Ready_for_local_init_op:  "
        "Variables not initialized: global_step, dense/kernel, ready: None",
        origin="source: python/training/session_manager.py of TensorFlow 2.21",
        least=3,
        weight=0.7,
        overcome_by=_SESSION_BEGAN,
    ),
    Signature(
        id="tf-check-alive",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="luster check alive failed, ",
        pattern=r"[Cc]luster check alive failed, (?P<task>/job:\w{1,20}/replica:\d{1,6}/task:"
        r"\d{1,6}) is down",
        meaning="{task} no longer answers, so the other workers stop.",
        fix="Look at the log of {task}: it failed first, or its host or network did.",
        example="ERROR:tensorflow:Cluster check alive failed, /job:worker/replica:0/task:1 is "
        "down, aborting collectives: Deadline Exceeded",
        origin="source: python/distribute/collective_all_reduce_strategy.py of TensorFlow 2.21",
        weight=0.9,
    ),
)
