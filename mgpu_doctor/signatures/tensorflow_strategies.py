"""What strategies of TensorFlow, and Keras under them, cannot do: known defects and what to do."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_LOOP = (
    "write the training loop yourself, with `strategy.run` around the step and a Keras model and "
    "optimizer in it"
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="tf-merge-in-control-flow",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="`merge_call` called while defining a new",
        pattern=r"`merge_call` called while defining a new graph or a tf\.function",
        meaning="Gradients are reduced or applied inside a condition, a loop or a nested "
        "function, which a strategy cannot do. Keras' gradient_accumulation_steps does that under "
        "every strategy (keras#20582).",
        fix="Leave gradient_accumulation_steps out; to accumulate, " + _LOOP + ", add gradients to "
        "variables and apply them in every K-th call.",
        example="RuntimeError: `merge_call` called while defining a new graph or a tf.function. "
        "This can often happen if the function `fn` passed to `strategy.run()` contains a nested "
        "`@tf.function`, and the nested `@tf.function` contains a synchronization point",
        origin="made: fit with gradient_accumulation_steps=4 under MirroredStrategy, Keras 3.15, "
        "TensorFlow 2.21",
    ),
    Signature(
        id="tf-no-merge-context",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="has no attribute 'merge_call'",
        pattern=r"'NoneType' object has no attribute 'merge_call'",
        meaning="An optimizer was called outside of `strategy.run`, where a strategy expects it "
        "to be called.",
        fix="Call the step by `strategy.run(step, args=...)`, also in what a ClusterCoordinator "
        "schedules.",
        example="AttributeError: 'NoneType' object has no attribute 'merge_call'",
        origin="made: a step scheduled without strategy.run under ParameterServerStrategy, Keras "
        "3.15, TensorFlow 2.21",
    ),
    Signature(
        id="keras-steps-per-execution",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="You must feed a value for placeholder tensor",
        pattern=r"You must feed a value for placeholder tensor '(?P<name>while/body[^']{0,160})'",
        meaning="Keras' steps_per_execution > 1 does not work under a strategy that has several "
        "replicas.",
        fix="Leave steps_per_execution at 1.",
        example="  (0) INVALID_ARGUMENT:  You must feed a value for placeholder tensor "
        "'while/body/_1/while/cond/then/_147/while/cond/Placeholder' with dtype int32",
        origin="made: fit with steps_per_execution=2 under MirroredStrategy, Keras 3.15, "
        "TensorFlow 2.21",
    ),
    Signature(
        id="tf-jit-over-replicas",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle=" located in device ",
        pattern=r"resource \S{0,200} (?:\([^)]{0,300}\) )?located in device (?P<theirs>\S+) from "
        r"device (?P<ours>[^\s;]+)",
        meaning="XLA compiled a step of several replicas, which use each other's variables: "
        "jit_compile=True does not work under a strategy.",
        fix='Leave jit_compile out or at "auto", which is off under a strategy.',
        example="Trying to access resource sequential_2/conv2d_4/kernel/replica_1/67 (defined @ "
        "/venv/lib/python3.11/site-packages/keras/src/backend/tensorflow/core.py:43) located in "
        "device /job:localhost/replica:0/task:0/device:CPU:1 from device "
        "/job:localhost/replica:0/task:0/device:CPU:0",
        origin="made: fit with jit_compile=True under MirroredStrategy, Keras 3.15, TensorFlow "
        "2.21",
        needle_tells=False,
    ),
    Signature(
        id="tf-nccl-without-gpus",
        code="failed-tf-collective",
        role=Role.CAUSE,
        needle="'NcclAllReduce'",
        pattern=r"No OpKernel was registered to support Op 'NcclAllReduce'",
        meaning="Gradients were to be reduced by NCCL, which needs GPUs and a TensorFlow that was "
        "built for them.",
        fix="Leave cross_device_ops out of MirroredStrategy, or use "
        "tf.distribute.HierarchicalCopyAllReduce().",
        example="No OpKernel was registered to support Op 'NcclAllReduce' used by {{node "
        'NcclAllReduce}} with these attrs: [T=DT_FLOAT, num_devices=2, shared_name="c0", '
        'reduction="sum"]',
        origin="made: MirroredStrategy of virtual CPUs with NcclAllReduce, TensorFlow 2.21",
    ),
    Signature(
        id="tf-collectives-differ",
        code="hang-collective-mismatch",
        role=Role.CAUSE,
        needle="Collective instance ",
        pattern=r"Collective instance (?P<instance>\d+) expected type (?P<expected>\d+) and "
        r"data_type \d+ but got type (?P<got>\d+)",
        meaning="Workers called different collectives at the same place: their graphs differ.",
        fix="Build the same model in the same order on every worker, and restore or save on all "
        "of them: look for `if task_id == 0`.",
        example="Collective instance 122 expected type 1 and data_type 9 but got type 0 and "
        "data_type 9",
        origin="made: a checkpoint restored on one worker of two, TensorFlow 2.21",
        mutual=True,
    ),
    Signature(
        id="keras-parameter-server-data",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="To use this dataset, you need to pass",
        pattern=r"To use this dataset, you need to pass this dataset to "
        r"ClusterCoordinator\.create_per_worker_dataset",
        meaning="Keras 3 cannot `fit` under ParameterServerStrategy (keras#18624).",
        fix="Use ClusterCoordinator: create_per_worker_dataset for the data, and schedule a "
        "tf.function that calls `strategy.run`; or TF_USE_LEGACY_KERAS=1 with the package "
        "tf_keras.",
        example="ValueError: To use this dataset, you need to pass this dataset to "
        "ClusterCoordinator.create_per_worker_dataset.",
        origin="made: fit under ParameterServerStrategy, Keras 3.15, TensorFlow 2.21",
    ),
    Signature(
        id="keras-reduction-dimension",
        code="failed-tf-collective",
        role=Role.CAUSE,
        needle="Invalid reduction dimension ",
        pattern=r"Invalid reduction dimension (?P<dimension>-?\d+) for input with \d+ dimension",
        meaning="A loss of one number was reduced as if it had a batch in it: Keras 3 does that "
        "in `fit` under MultiWorkerMirroredStrategy (keras#20585).",
        fix="Set TF_USE_LEGACY_KERAS=1 with the package tf_keras, or " + _LOOP + ".",
        example="ValueError: Invalid reduction dimension 0 for input with 0 dimensions.",
        origin="made: fit under MultiWorkerMirroredStrategy with Keras 3.15, TensorFlow 2.21",
        weight=0.7,
    ),
    Signature(
        id="tf-custom-gradient-keywords",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="The custom_gradient decorator currently",
        pattern=r"The custom_gradient decorator currently supports keywords arguments only when "
        r"eager",
        meaning="Recomputation of a whole layer passes keywords to a custom gradient in a graph: "
        'Keras\' RematScope("full") does that.',
        fix='RematScope(mode="activations"), keras.remat(function) or tf.recompute_grad instead.',
        example="The custom_gradient decorator currently supports keywords arguments only when "
        "eager execution is enabled.",
        origin='made: fit within keras.RematScope("full"), Keras 3.15, TensorFlow 2.21',
    ),
    Signature(
        id="tf-slot-outside-scope",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Trying to create optimizer slot variable under",
        pattern=r"Trying to create optimizer slot variable under the scope for "
        r"tf\.distribute\.Strategy",
        meaning="The optimizer works in a strategy's scope, the model was made outside it.",
        fix="Make the model, its metrics and the optimizer inside `with strategy.scope():`.",
        example="ValueError: Trying to create optimizer slot variable under the scope for "
        "tf.distribute.Strategy (<MirroredStrategy>), which is different from the scope used for "
        "the original variable",
        origin="source: python/keras/optimizer_v2/optimizer_v2.py of TensorFlow 2.21",
    ),
    Signature(
        id="tf-not-cross-replica",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Method requires being in cross-replica context",
        pattern=r"Method requires being in cross-replica context, use",
        meaning="A method of the strategy was called inside `strategy.run`, in a replica.",
        fix="Call it outside `strategy.run`, or use the methods of "
        "`tf.distribute.get_replica_context()`.",
        example="RuntimeError: Method requires being in cross-replica context, use "
        "get_replica_context().merge_call()",
        origin="source: python/distribute/distribute_lib.py of TensorFlow 2.21",
    ),
    Signature(
        id="tf-group-size",
        code="failed-tf-collective",
        role=Role.CAUSE,
        needle=" is joining a group with size",
        pattern=r"Device (?P<device>/job:\S{1,80}) (?:current incarnation \S{1,40} )?is joining a "
        r"group with size ?(?P<asked>\d{1,6}), but that group has size ?(?P<size>\d{1,6})",
        meaning="{device} expects {asked} devices in a collective, the others {size}: the workers "
        "do not see the same number of GPUs, or TF_CONFIG differs.",
        fix="Give every worker the same number of GPUs (CUDA_VISIBLE_DEVICES) and the same "
        "cluster in TF_CONFIG.",
        example="InternalError: Device /job:worker/replica:0/task:1/device:GPU:0 is joining a "
        "group with size2, but that group has size 3 (group_key=1)",
        origin="recalled: collective_param_resolver_local.cc of TensorFlow 2.4",
    ),
    Signature(
        id="keras-per-replica",
        code="failed-tf-collective",
        role=Role.CAUSE,
        needle="distribute.values.PerReplica'>",
        pattern=r"with an unsupported type \(<class "
        r"'tensorflow\.python\.distribute\.values\.PerReplica'>\) to a Tensor",
        meaning="Keras 3 cannot `fit` under this strategy: it does not handle data of several "
        "workers (MultiWorkerMirroredStrategy).",
        fix="Set TF_USE_LEGACY_KERAS=1 with the package tf_keras, or write the training loop with "
        "`strategy.run`.",
        example="}) with an unsupported type (<class "
        "'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
        origin="made: fit under MultiWorkerMirroredStrategy with Keras 3.15, TensorFlow 2.21",
    ),
)
