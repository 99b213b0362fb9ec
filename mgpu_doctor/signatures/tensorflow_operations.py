"""TensorFlow and Keras operations that fail: shapes, labels, values, devices, retracing."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="tf-matrix-sizes",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Matrix size-incompatible: ",
        pattern=r"Matrix size-incompatible: In\[0\]: (?P<left>\[[\d,]*\]), In\[1\]: "
        r"(?P<right>\[[\d,]*\])",
        meaning="A matrix product of {left} and {right}: the inner sizes differ.",
        fix="Compare the layer's input size with the data's; `tf.debugging.assert_shapes` before "
        "the line.",
        example="InvalidArgumentError: {{function_node __inference_step_12}} Matrix "
        "size-incompatible: In[0]: [2,3], In[1]: [2,3]",
        origin="made: tf.matmul of 2x3 and 2x3, TensorFlow 2.21",
    ),
    Signature(
        id="tf-incompatible-shapes",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Incompatible shapes: [",
        pattern=r"Incompatible shapes: (?P<left>\[[\d,]*\]) vs\. (?P<right>\[[\d,]*\])",
        meaning="Two tensors that are combined element by element have shapes {left} and {right}.",
        fix="If only the last batch is smaller: `batch(..., drop_remainder=True)`. Otherwise "
        "compare the model's output with the labels.",
        example="InvalidArgumentError: {{function_node "
        "__wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:CPU:0}} Incompatible "
        "shapes: [2,3] vs. [4,5] [Op:AddV2] name: ",
        origin="made: a sum of 2x3 and 4x5, TensorFlow 2.21",
    ),
    Signature(
        id="tf-reshape",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Input to reshape is a tensor with ",
        pattern=r"Input to reshape is a tensor with (?P<got>\d+) values, but the requested shape "
        r"(?:has|requires a multiple of) (?P<wanted>\d+)",
        meaning="A reshape got {got} values and needs {wanted}.",
        fix="If only the last batch is smaller: `batch(..., drop_remainder=True)`, or reshape "
        "with -1 for the batch.",
        example="InvalidArgumentError: {{function_node "
        "__wrapped__Reshape_device_/job:localhost/replica:0/task:0/device:CPU:0}} Input to "
        "reshape is a tensor with 4 values, but the requested shape has 6 [Op:Reshape]",
        origin="made: tf.reshape of 4 values to 3x2, TensorFlow 2.21",
    ),
    Signature(
        id="keras-layer-input",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle=" is incompatible with the layer: ",
        pattern=r"Input \d+ .{0,60}of layer [\"'](?P<layer>[^\"']{1,80})[\"'] is incompatible with "
        r"the layer: (?P<reason>.{1,200})",
        meaning="Layer {layer} got data of another shape than it was built for: {reason}",
        fix="Make `Input(shape=...)` that of one sample of the data.",
        example="Input 0 with name 'None' of layer 'dense' is incompatible with the layer: "
        "expected axis -1 of input shape to have value 4, but received input with shape (2, 5)",
        origin="made: five features into a layer for four, Keras 3.15",
    ),
    Signature(
        id="tf-label-out-of-range",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Received a label value of ",
        pattern=r"Received a label value of (?P<label>-?\d+) which is outside the valid range of "
        r"(?P<range>\[\d+, ?\d+\))",
        meaning="Label {label} is outside the classes {range} that the model predicts.",
        fix="Make the last layer as wide as there are classes, and count labels from 0.",
        example="Received a label value of 7 which is outside the valid range of [0, 3).  Label "
        "values: 7 7 7 7 7 7 7 7",
        origin="made: label 7 for three classes, TensorFlow 2.21",
    ),
    Signature(
        id="tf-index-out-of-range",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="is not in [0, ",
        pattern=r"\bindices(?:\[[\d,]*\])? ?= ?(?P<index>-?\d+) is not in \[0, (?P<size>\d+)\)",
        meaning="Index {index} was looked up in a table of {size} rows: usually a token or "
        "category that the embedding does not have.",
        fix="Make `input_dim` of the embedding larger than the largest id.",
        example="InvalidArgumentError: {{function_node "
        "__wrapped__GatherV2_device_/job:localhost/replica:0/task:0/device:CPU:0}} indices[0] = 7 "
        "is not in [0, 3) [Op:GatherV2]",
        origin="made: id 7 in an embedding of 3 rows, TensorFlow 2.21",
        needle_tells=False,
    ),
    Signature(
        id="tf-samples-of-unequal-size",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Cannot batch tensors with different shapes",
        pattern=r"Cannot batch tensors with different shapes in component \d+\. First element had "
        r"shape (?P<left>\[[\d,]*\]) and element \d+ had shape (?P<right>\[[\d,]*\])",
        meaning="Samples of one batch differ in shape ({left} and {right}).",
        fix="Use `padded_batch`, `ragged_batch`, or resize in the `map` before.",
        example="InvalidArgumentError: {{function_node "
        "__wrapped__IteratorGetNext_output_types_1_device_/job:localhost/replica:0/task:0/"
        "device:CPU:0}} "
        "Cannot batch tensors with different shapes in component 0. First element had shape [3] "
        "and element 1 had shape [4]. [Op:IteratorGetNext] name: ",
        origin="made: a data set of samples of 3 and 4 values, TensorFlow 2.21",
    ),
    Signature(
        id="tf-replicas-of-unequal-size",
        code="failed-tf-batch-indivisible",
        role=Role.CAUSE,
        needle="Inputs to operation AddN ",
        pattern=r"Inputs to operation AddN\S* of type AddN must have the same size and shape\. "
        r"+Input 0: (?P<left>\[[\d,]*\]) != input (?P<replica>\d+): (?P<right>\[[\d,]*\])",
        meaning="Replicas were given parts of different size ({left} and {right}): the global "
        "batch is not a multiple of the number of replicas.",
        fix="Make the global batch a multiple of `strategy.num_replicas_in_sync`, and `batch(..., "
        "drop_remainder=True)`.",
        example="InvalidArgumentError: {{function_node "
        "__wrapped__AddN_N_3_device_/job:localhost/replica:0/task:0/device:CPU:0}} Inputs to "
        "operation AddN of type AddN must have the same size and shape.  Input 0: [3,4] != input "
        "2: [2,4] [Op:AddN] name: ",
        origin="made: a batch of 8 over three replicas of MirroredStrategy, TensorFlow 2.21",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="tf-batch-indivisible",
        code="failed-tf-batch-indivisible",
        role=Role.CAUSE,
        needle="The `global_batch_size` ",
        pattern=r"The `global_batch_size` (?P<batch>\d+) is not divisible by "
        r"`num_replicas_in_sync` (?P<replicas>\d+)",
        meaning="The global batch of {batch} cannot be split over {replicas} replicas.",
        fix="Choose a global batch that is a multiple of {replicas}.",
        example="ValueError: The `global_batch_size` 7 is not divisible by `num_replicas_in_sync` "
        "2 ",
        origin="source: tensorflow/python/distribute/distribute_lib.py of TensorFlow 2.21",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="keras-batch-indivisible",
        code="failed-tf-batch-indivisible",
        role=Role.CAUSE,
        needle="Global batch size must be divisible by",
        pattern=r"Global batch size must be divisible by the number of (?P<what>\w+)",
        meaning="The global batch cannot be split evenly over the {what}.",
        fix="Choose a global batch that is a multiple of the number of {what}.",
        example="ValueError: Global batch size must be divisible by the number of processes. "
        "`global_batch_size`=7 and `num_processes`=2",
        origin="source: keras/src/distribution/distribution_lib.py of Keras 3.15",
    ),
    Signature(
        id="tf-retracing",
        code="recompiling",
        role=Role.CAUSE,
        needle="triggered tf.function retracing.",
        pattern=r"(?P<count>\d{1,9}) out of the last \d+ calls to (?P<function>.{1,160}?) "
        r"triggered tf\.function retracing\.",
        meaning="{function} was traced again in nearly every call; that costs far more than the "
        "call itself.",
        fix="Pass tensors instead of Python numbers, give `input_signature` or "
        "`reduce_retracing=True`, and define the function outside the loop.",
        example="WARNING:tensorflow:5 out of the last 5 calls to <function f at 0x7f18d7abc720> "
        "triggered tf.function retracing. Tracing is expensive and the excessive number of "
        "tracings could be due to (1) creating @tf.function repeatedly in a loop, (2) passing "
        "tensors with different shapes, (3) passing Python objects instead of tensors.",
        origin="made: a tf.function called with twelve Python numbers, TensorFlow 2.21",
        severity="warning",
        weight=0.6,
    ),
    Signature(
        id="tf-gradient-shape",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="var and grad do not have the same shape",
        pattern=r"var and grad do not have the same shape:? ?(?P<variable>\[[\d,]{0,60}\]) "
        r"(?P<gradient>\[[\d,]{0,60}\])",
        meaning="A gradient of shape {gradient} cannot update a variable of shape {variable}.",
        fix="Look for a variable whose shape depends on the batch or the replica, and for custom "
        "gradients.",
        example="Invalid argument: var and grad do not have the same shape[4,1024] [256,1024]",
        origin="source: strings in the library of TensorFlow 2.21",
    ),
    Signature(
        id="tf-logits-labels",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="logits and labels must be broadcastable",
        pattern=r"logits and labels must be (?:broadcastable|same size)",
        meaning="The model's outputs and the labels have different shapes.",
        fix="Compare the number of classes with the last layer, and the batch of both.",
        example="InvalidArgumentError: logits and labels must be broadcastable: "
        "logits_size=[32,10] labels_size=[32,2]",
        origin="source: strings in the library of TensorFlow 2",
    ),
    Signature(
        id="tf-uninitialised",
        code="failed-exception",
        role=Role.CAUSE,
        needle="ttempting to use uninitialized value",
        pattern=r"[Aa]ttempting to use uninitialized value (?P<variable>[\w/.:-]{1,200})",
        meaning="The variable {variable} was read before it got a value.",
        fix="Run `tf.global_variables_initializer()` first; under MonitoredSession create all "
        "variables before it.",
        example="FailedPreconditionError: Attempting to use uninitialized value beta1_power",
        origin="source: strings in the library of TensorFlow 2",
        needle_tells=False,
    ),
    Signature(
        id="tf-device-not-assignable",
        code="failed-tf-invalid-argument",
        role=Role.CAUSE,
        needle="Cannot assign a device for operation",
        pattern=r"InvalidArgumentError: .{0,40}?Cannot assign a device for operation",
        meaning="TensorFlow cannot place an operation: the named device does not exist, or has no "
        "kernel for it.",
        fix="Check the `tf.device` names against `tf.config.list_physical_devices()`, or use soft "
        "placement.",
        example="InvalidArgumentError: Cannot assign a device for operation dense/kernel: node "
        "was explicitly assigned to /device:GPU:4",
        origin="source: tensorflow/core/common_runtime/placer.cc of TensorFlow 2.15",
        needle_tells=False,
    ),
)
