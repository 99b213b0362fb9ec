"""Workers of a TensorFlow or JAX cluster that are missing, restarted, late or lost."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_WORKER_LOG = "Look at the log of the lost task: it failed first. Then start all tasks again."
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
        "host. It can join again if it is restarted with the same TF_CONFIG.",
        example="ERROR:tensorflow:Worker /job:worker/replica:0/task:1 failed with "
        "UnavailableError():Socket closed",
        origin="made: SIGKILL of a worker under ParameterServerStrategy, TensorFlow 2.21",
        severity="warning",
        weight=0.95,
    ),
    Signature(
        id="tf-heartbeats-stopped",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="(stopped sending heartbeats)",
        pattern=r"(?:Error reported from /job:(?P<job>\w+)/(?:replica:\d+/)?task:(?P<task>\d+): "
        r")?The following tasks are unhealthy \(stopped sending heartbeats\)",
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
        meaning="Worker {worker} never joined: nobody answered at {address} within {seconds} s, "
        "and the others waited.",
        fix="Start worker {worker}, or look at its own log for why it ended; is {address} its "
        "address in every TF_CONFIG, and does a firewall block it? `nc -vz HOST PORT` tries it.",
        example="tf-multiworker: worker 1 (localhost:41332) did not come within 10 s",
        origin="made: tf-multiworker without its second worker, TensorFlow 2.21",
        needle_tells=False,
        mutual=True,
    ),
    Signature(
        id="tf-barrier-timeout",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="Barrier timed out. Id: ",
        pattern=r"Barrier timed out\. Id: (?P<barrier>[^.]{1,120})\.",
        meaning="Not every worker reached {barrier} in time: one is missing, slow or elsewhere.",
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
        pattern=r"/task:(?P<task>\d+) unexpectedly tried to connect with a different "
        r"incarnation\. It has likely restarted",
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
        id="tf-collective-late",
        code="failed-tf-config",
        role=Role.CAUSE,
        needle="Collective ops must be configured at program startup",
        pattern=r"RuntimeError: Collective ops must be configured at program startup",
        meaning="Operations ran before the multi-worker strategy was made.",
        fix="Create `MultiWorkerMirroredStrategy` as the first thing in the program.",
        example="RuntimeError: Collective ops must be configured at program startup",
        origin="source: tensorflow/python/eager/context.py of TensorFlow 2.15",
        weight=0.95,
    ),
    Signature(
        id="tf-no-connection",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="failed to connect to all addresses",
        pattern=r"failed to connect to all addresses(?:; last error: (?P<reason>.{1,160}))?",
        meaning="A worker of the cluster does not answer.",
        fix="Is that worker running, is its address in TF_CONFIG right, does a firewall block it? "
        "`nc -vz HOST PORT` tries it.",
        example="UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: "
        "ipv4:127.0.0.1:24001: Failed to connect to remote host: Connection refused",
        origin="source: gRPC 1.74, in TensorFlow 2.21",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="tf-connection-closed",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="UnavailableError",
        pattern=r"\bUnavailableError(?: \(see above for traceback\))?: (?:\{\{.{1,200}?\}\} ?)?"
        r"(?:OS Error|Endpoint read failed|Socket closed|Stream removed|Transport closed|"
        r"Connection reset by peer)",
        meaning="The connection to another task of the cluster broke: it ended, or the network "
        "did.",
        fix="Look for the first error of the other tasks, on every host: this one only lost its "
        "partner.",
        example="tensorflow.python.framework.errors_impl.UnavailableError: Socket closed",
        origin="recalled: gRPC as of TensorFlow 1.12",
        weight=0.6,
    ),
    Signature(
        id="tf-session-lost",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle=". Possibly, this worker just restarted.",
        pattern=r"\b(?:Session|Graph) .{0,80}?not found\. Possibly, this worker just restarted\.",
        meaning="A task of the cluster was started again and knows nothing of the session.",
        fix="Look for the end of that task before, in its own log. MonitoredTrainingSession makes "
        "a new session from the last checkpoint.",
        example="AbortedError: Session e9f01 is not found. Possibly, this worker just restarted.",
        origin="source: strings in the library of TensorFlow 2.21",
        weight=0.7,
    ),
    Signature(
        id="tf-session-raised",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="connected worker or parameter server",
        pattern=r"An error (?:was raised|occurred)\b.{0,60}?\. This may be due to a preemption "
        r"(?:of|in) a connected worker or parameter server",
        meaning="A call to another task of the cluster failed, so the session is made again: that "
        "task was lost, restarted, or does not answer.",
        fix=_WORKER_LOG + " The end of the line names the error.",
        example="INFO:tensorflow:An error was raised while a session was being created. This may "
        "be due to a preemption of a connected worker or parameter server. A new session will be "
        "created.",
        origin="source: tensorflow/python/training/monitored_session.py of TensorFlow 2.21",
        weight=0.6,
        overcome_by=_SESSION_BEGAN,
    ),
    Signature(
        id="tf-master-init",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="Master init: ",
        pattern=r"Master init: (?P<reason>(?:Unavailable|UNAVAILABLE|Deadline|DEADLINE|Aborted"
        r"|ABORTED)\b.{0,120})",
        meaning="The session could not begin, because a task of the cluster does not answer: "
        "{reason}",
        fix="Start every task of the cluster, and compare the addresses in its specification; "
        "each task must reach every other one.",
        example="E tensorflow/core/distributed_runtime/master.cc:269] Master init: Unavailable: "
        "OS Error",
        origin="recalled: tensorflow/core/distributed_runtime/master.cc of TensorFlow 1.8",
        weight=0.6,
        needle_tells=False,
        overcome_by=_SESSION_BEGAN,
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
        pattern=r"[Cc]luster check alive failed, "
        r"(?P<task>/job:\w{1,20}/replica:\d{1,6}/task:\d{1,6}) is down",
        meaning="{task} no longer answers, so the other workers stop.",
        fix="Look at the log of {task}: it failed first, or its host or network did.",
        example="ERROR:tensorflow:Cluster check alive failed, /job:worker/replica:0/task:1 is "
        "down, aborting collectives: Deadline Exceeded",
        origin="source: python/distribute/collective_all_reduce_strategy.py of TensorFlow 2.21",
    ),
    Signature(
        id="tf-deadline",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="DeadlineExceededError: ",
        pattern=r"errors_impl\.DeadlineExceededError: (?:Deadline Exceeded|deadline exceeded|"
        r"Timed out)",
        meaning="Another task of the cluster did not answer in time.",
        fix="Look at the logs of the other tasks for the first failure.",
        example="tensorflow.python.framework.errors_impl.DeadlineExceededError: Deadline Exceeded",
        origin="source: strings in the library of TensorFlow 2",
        weight=0.55,
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
        id="jax-service-ends",
        code="failed-tf-worker-missing",
        role=Role.SYMPTOM,
        needle="JAX distributed service detected fatal errors",
        pattern=r"Terminating process because the JAX distributed service detected fatal errors",
        meaning="Another process of the JAX job ended, so this one was ended, too.",
        fix="Look at the logs of the other processes for the first failure.",
        example="Terminating process because the JAX distributed service detected fatal errors. "
        "This most likely indicates that another task died; see the other task logs for more "
        "details.",
        origin="recalled: xla/pjrt/distributed/client.h of JAX 0.4",
        weight=0.55,
    ),
    Signature(
        id="jax-barrier",
        code="failed-rendezvous",
        role=Role.SYMPTOM,
        needle="DEADLINE_EXCEEDED: Barrier timed out",
        pattern=r"DEADLINE_EXCEEDED: Barrier timed out\. ",
        meaning="Not all JAX processes reached the barrier in time.",
        fix="Look at the processes that the message lists: they did not start, ended, or use "
        "another coordinator address.",
        example="jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. "
        "Barrier_id: PjRT_Client_Connect.",
        origin="recalled: xla/tsl/distributed_runtime/coordination/coordination_service.cc of XLA",
        weight=0.7,
    ),
    Signature(
        id="xla-rendezvous-stuck",
        code="failed-nccl-timeout",
        role=Role.SYMPTOM,
        needle="threads to join the rendezvous, but not all of them",
        pattern=r"may be stuck\. Expected (?P<wanted>\d{1,5}) threads to join the rendezvous, but "
        r"not all of them arrived on time",
        meaning="XLA waits for {wanted} devices to meet in a collective, and not all of them "
        "arrive.",
        fix="Look at the other processes: one of them failed or is slower. All must have the same "
        "XLA flags and reach each other's network.",
        example="This thread has been waiting for `initialize clique for rank 6` for 10 seconds "
        "and may be stuck. Expected 8 threads to join the rendezvous, but not all of them arrived "
        "on time.",
        origin="recalled: xla/service/rendezvous.cc of JAX 0.4",
        weight=0.5,
        needle_tells=False,
    ),
)
