"""Losses and gradients that are NaN or infinite, as frameworks and scripts report them."""

from __future__ import annotations

from collections.abc import Iterator

from mgpu_doctor.signatures.signature import Role, Signature

_NUMBERS = (
    "Lower the learning rate, clip the gradients (`clip_grad_norm_`), check the batch for "
    "non-finite values; `torch.autograd.set_detect_anomaly(True)` names the operation."
)
_SUBJECT = r"\b(?i:loss(?:es)?|outputs?|gradients?|grads?|logits|activations|weights)\b"


def _not_finite(spelling: str) -> Iterator[Signature]:
    """A signature for exceptions of scripts whose own words say that something is NaN."""
    yield Signature(
        id=f"raised-for-{spelling.lower()}-{'aA'.find(spelling[1]) + 2 * 'nN'.find(spelling[0])}",
        code="loss-nan",
        role=Role.CAUSE,
        needle=spelling,
        pattern=r"^(?:Value|Runtime|Assertion|FloatingPoint|Arithmetic)?(?:Error|Exception): ?"
        r"(?!.{0,120}(?:became infinite or NaN at|in local grad norm|nan values in its))"
        r"(?:.{0,120}?"
        + _SUBJECT
        + rf".{{0,60}}?\b{spelling}\b|.{{0,120}}?\b{spelling}\b.{{0,60}}?"
        + _SUBJECT
        + ")",
        meaning="The script stopped because a value of the training is not a number.",
        fix=_NUMBERS,
        example=f"RuntimeError: the loss of this step is {spelling}",
        origin="made: a script that raises when its loss is not finite",
        weight=0.6,
    )


def _ends_for_nan(spelling: str) -> Signature:
    """Scripts that say in their own words that they stop because the loss is not a number."""
    return Signature(
        id=f"loss-{'spelled' if spelling == 'NaN' else 'is'}-nan-stops",
        code="loss-nan",
        role=Role.CAUSE,
        needle=spelling,
        pattern=r"(?:^|\W)(?i:loss)\b.{0,20}?"
        rf"\b{spelling}\b(?!, stopping training)"
        r".{0,40}?\b(?i:exit|stop|abort|terminat|halt)\w{0,6}\b",
        meaning="The loss is not a number, and the script stopped.",
        fix=_NUMBERS,
        example=f"ERROR: loss is {spelling}, exiting",
        origin="made: a script that stops when its loss is not finite",
        weight=0.6,
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="anomaly-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="' returned nan values in its ",
        pattern=r"Function '(?P<operation>\w+)' returned nan values in its \d+th output",
        meaning="The backward pass of {operation} gave NaN.",
        fix="Guard the operation (an epsilon inside `sqrt`, `log` and divisions). " + _NUMBERS,
        example="RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.",
        origin="made: the gradient of sqrt at 0 under anomaly detection, torch 2.13",
    ),
    Signature(
        id="distribution-of-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="but found invalid values:",
        pattern=r"Expected parameter \w+ \(.{1,80}\) of distribution .{1,200} to satisfy the "
        r"constraint .{1,80}, but found invalid values",
        meaning="The model's output that parametrises a distribution holds NaN or impossible "
        "values: training has diverged.",
        fix=_NUMBERS,
        example="ValueError: Expected parameter logits (Tensor of shape (2,)) of distribution "
        "Categorical(logits: torch.Size([2])) to satisfy the constraint "
        "IndependentConstraint(Real(), 1), but found invalid values:",
        origin="made: a Categorical of NaN logits, torch 2.13",
    ),
    Signature(
        id="distribution-of-nan-old",
        code="loss-nan",
        role=Role.CAUSE,
        needle="but found invalid values",
        pattern=r"to satisfy the constraint .{1,80}?, but found invalid values(?!:)",
        meaning="A distribution got parameters that are not numbers.",
        fix=_NUMBERS,
        example="ValueError: Expected parameter loc of distribution Normal to satisfy the "
        "constraint Real(), but found invalid values",
        origin="recalled: torch/distributions/distribution.py of torch 1.9",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="probabilities-of-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="probability tensor contains either",
        pattern=r"probability tensor contains either `?inf`?, `?nan`? or element < 0",
        meaning="Sampling got probabilities that are NaN, infinite or negative: the model's "
        "output has diverged.",
        fix=_NUMBERS,
        example="RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        origin="made: torch.multinomial of NaN, torch 2.13",
    ),
    Signature(
        id="gradient-norm-non-finite",
        code="loss-nan",
        role=Role.CAUSE,
        needle="is non-finite, so it cannot be clipped",
        pattern=r"The total norm of order (?P<order>[\w.]+) for gradients from `parameters` is "
        r"non-finite, so it cannot be clipped",
        meaning="The gradients hold NaN or infinity, and clipping is set to raise an error for "
        "that.",
        fix=_NUMBERS,
        example="RuntimeError: The total norm of order 2.0 for gradients from `parameters` is "
        "non-finite, so it cannot be clipped. To disable this error and scale the gradients by "
        "the non-finite norm anyway, set `error_if_nonfinite=False`",
        origin="made: clip_grad_norm_(error_if_nonfinite=True) on NaN, torch 2.13",
    ),
    Signature(
        id="loss-printed-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="nan",
        pattern=r"(?i:loss)['\"]?\s{0,6}[:=|]?\s{0,6}(?:tensor\()?-?nan\b(?! is not)",
        meaning="The loss that is printed is not a number, again and again: the weights are lost, "
        "and going on changes nothing.",
        fix="Go back to a checkpoint from before the first one. A smaller learning rate, clipped "
        "gradients and bf16 instead of fp16 are the usual remedies; "
        "`torch.autograd.set_detect_anomaly(True)` finds the operation.",
        example="{'loss': nan, 'grad_norm': nan, 'learning_rate': 4.5e-05, 'epoch': 0.2}",
        origin="made: SGD with a learning rate of 1e30, metrics printed as a dict, torch 2.13",
        severity="warning",
        least=10,
        weight=0.85,
    ),
    *_not_finite("NaN"),
    *_not_finite("nan"),
    *_not_finite("NAN"),
    _ends_for_nan("nan"),
    _ends_for_nan("NaN"),
    Signature(
        id="non-finite-loss-ends",
        code="loss-nan",
        role=Role.CAUSE,
        needle="on-finite loss",
        pattern=r"\b[Nn]on-finite loss, ending training",
        meaning="The loss is not a finite number, and the script stopped.",
        fix=_NUMBERS,
        example="WARNING: non-finite loss, ending training tensor([nan, nan], device='cuda:0')",
        origin="recalled: train.py of YOLOv3",
        needle_tells=False,
    ),
    Signature(
        id="loss-not-finite-stop",
        code="loss-nan",
        role=Role.CAUSE,
        needle=", stopping training",
        pattern=r"Loss is (?:-?nan|-?inf)(?:inity)?, stopping training",
        meaning="The loss is not a finite number, and the script stopped.",
        fix="Lower the learning rate, clip gradients, and check the batch.",
        example="Loss is nan, stopping training",
        origin="recalled: engine.py of torchvision's reference scripts",
        weight=0.95,
    ),
    Signature(
        id="epoch-loss-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="nan",
        pattern=r"^(?!\{)(?!.{0,200}?(?:%\||it/s))(?=.{0,120}?\b(?i:epoch|iter(?:ation)?|"
        r"step)\b).{0,300}?\b(?i:loss)\w{0,20}\s{0,3}[:=|]?\s{0,6}nan\b|\bloss\w{0,30}: nan, "
        r"\w{0,10}loss\w{0,30}: nan",
        meaning="The loss or the gradient that is printed is not a number.",
        fix="Go back to a checkpoint from before the first one. A smaller learning rate, clipped "
        "gradients and bf16 instead of fp16 are the usual remedies.",
        example="Epoch [1][658/742] lr: 5.000e-05, time: 0.396, loss_cls: nan, total: 0.0",
        origin="made: SGD with a learning rate of 1e30, torch 2.13",
        severity="warning",
        least=2,
        weight=0.6,
    ),
    Signature(
        id="detector-loss-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="Loss became infinite or NaN at iteration",
        pattern=r"FloatingPointError: Loss became infinite or NaN at iteration=(?P<step>\d{1,12})",
        meaning="The loss was not a finite number at step {step}.",
        fix="Lower the learning rate, lengthen warm-up, clip gradients, and check the batch of "
        "that step.",
        example="FloatingPointError: Loss became infinite or NaN at iteration=512!",
        origin="source: detectron2/engine/train_loop.py of detectron2",
        weight=0.95,
    ),
    Signature(
        id="gradients-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="FloatingPointError: gradients are ",
        pattern=r"FloatingPointError: gradients are Nan/Inf",
        meaning="The gradients are not finite numbers.",
        fix=_NUMBERS,
        example="FloatingPointError: gradients are Nan/Inf",
        origin="recalled: fairseq/trainer.py of fairseq 0.10",
        needle_tells=False,
    ),
    Signature(
        id="trainer-gradient-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="'grad_norm': nan",
        pattern=r"'loss': 0\.0, 'grad_norm': nan",
        meaning="The gradients are not numbers, and the loss is 0: the weights are lost.",
        fix="Go back to a checkpoint from before the first one. A smaller learning rate, clipped "
        "gradients and bf16 instead of fp16 are the usual remedies.",
        example="{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}",
        origin="recalled: transformers/trainer.py of Transformers 4",
        severity="warning",
        least=2,
        weight=0.8,
    ),
    Signature(
        id="megatron-gradient-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="in local grad norm",
        pattern=r"found (?P<what>NaN|Inf|large value) in local grad norm",
        meaning="A gradient is {what}: this check stops before it spreads to other ranks.",
        fix="Look at the batch and the activations of that rank at that step; lower the learning "
        "rate.",
        example="AssertionError: Rank 6: found NaN in local grad norm in backward pass before "
        "data-parallel communication collective",
        origin="recalled: megatron/core/distributed/param_and_grad_buffer.py of Megatron Core 0.9",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="apex-scale-vanished",
        code="loss-nan",
        role=Role.CAUSE,
        needle="reducing loss scale to ",
        pattern=r"Gradient overflow\. +Skipping step, loss scaler \d{1,3} reducing loss scale to "
        r"(?P<scale>0\.0|\d(?:\.\d{1,20})?e-(?:[2-9]\d|\d{3}))(?!\d)",
        meaning="Gradients overflowed at every step until the loss scale was {scale}: no step is "
        "taken any more.",
        fix="Go back to a checkpoint from before, lower the learning rate, or train in bf16.",
        example="Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to "
        "5.877471754111438e-39",
        origin="recalled: apex/amp/handle.py of apex 0.1",
        needle_tells=False,
    ),
    Signature(
        id="apex-scale-below-one",
        code="loss-nan",
        role=Role.CAUSE,
        needle="reducing loss scale to 0.",
        pattern=r"Gradient overflow\. +Skipping step, loss scaler \d{1,3} reducing loss scale to "
        r"(?P<scale>0\.\d{0,20}[1-9])(?!\d|e)",
        meaning="Gradients overflowed at one step after the other, until the loss scale was "
        "{scale}: they are not finite at any scale.",
        fix=_NUMBERS,
        example="Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.25",
        origin="recalled: apex/amp/handle.py of apex 0.1",
        severity="warning",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="apex-scale-low",
        code="loss-nan",
        role=Role.CAUSE,
        needle="reducing loss scale to ",
        pattern=r"Gradient overflow\. +Skipping step, loss scaler \d{1,3} reducing loss scale to "
        r"(?P<scale>[1248]\.0)(?!\d)",
        meaning="Gradients overflow again and again although the loss scale is down to {scale}: "
        "they are not finite at any scale, or soon will not be.",
        fix=_NUMBERS,
        example="Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 2.0",
        origin="recalled: apex/amp/handle.py of apex 0.1",
        severity="warning",
        least=3,
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="fairseq-loss-scale",
        code="loss-nan",
        role=Role.CAUSE,
        needle="FloatingPointError: Minimum loss scale reached",
        pattern=r"FloatingPointError: Minimum loss scale reached \((?P<scale>[\d.e-]{1,20})\)",
        meaning="Gradients overflowed at every step until the loss scale could not go lower.",
        fix="Lower the learning rate, clip gradients, or train in bfloat16.",
        example="FloatingPointError: Minimum loss scale reached (0.0002). Your loss is probably "
        "exploding.",
        origin="source: fairseq/optim/dynamic_loss_scaler.py of fairseq",
        weight=0.95,
    ),
    Signature(
        id="fairseq-scale-vanished",
        code="loss-nan",
        role=Role.CAUSE,
        needle="verflow detected, setting loss scale to: ",
        pattern=r"[Oo]verflow detected, setting loss scale to: "
        r"(?P<scale>0\.000[0-2]\d{0,20}|\d(?:\.\d{1,20})?e-\d{1,3})(?!\d)",
        meaning="Gradients overflowed at one step after the other until the loss scale was "
        "{scale}; fairseq ends the job below 0.0001.",
        fix="Lower the learning rate, clip gradients, or train in bfloat16.",
        example="| WARNING: overflow detected, setting loss scale to: 0.000244140625",
        origin="recalled: fairseq/optim/fp16_optimizer.py of fairseq",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="keras-loss-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle=": Invalid loss, terminating training",
        pattern=r"Batch (?P<batch>\d+): Invalid loss, terminating training",
        meaning="The loss of batch {batch} was NaN or infinite, and TerminateOnNaN ended the "
        "training.",
        fix="Lower the learning rate, set `clipnorm` in the optimizer, check that batch for "
        "non-finite values.",
        example="Batch 0: Invalid loss, terminating training",
        origin="made: fit on NaN with TerminateOnNaN, Keras 3.15",
        weight=0.95,
    ),
    Signature(
        id="tf-check-numerics",
        code="loss-nan",
        role=Role.CAUSE,
        needle=" : Tensor had ",
        pattern=r" : Tensor had (?P<what>NaN|Inf|-Inf|\+Inf|Inf and NaN)(?: and \S{1,8}){0,2} "
        r"values",
        meaning="A tensor that is checked held {what}.",
        fix="Lower the learning rate, clip the gradients, guard `log`, `sqrt` and divisions with "
        "an epsilon.",
        example="InvalidArgumentError: {{function_node "
        "__wrapped__CheckNumerics_device_/job:localhost/replica:0/task:0/device:CPU:0}} loss is "
        "bad : Tensor had NaN values [Op:CheckNumerics] name: ",
        origin="made: tf.debugging.check_numerics of NaN, TensorFlow 2.21",
    ),
    Signature(
        id="estimator-nan-loss",
        code="loss-nan",
        role=Role.CAUSE,
        needle="NaN loss during training.",
        pattern=r"\bNanLossDuringTrainingError: NaN loss during training\.",
        meaning="The loss was NaN, and the Estimator's NanTensorHook ended the training.",
        fix="Lower the learning rate, clip the gradients, and check the last batches for "
        "non-finite values.",
        example="tensorflow.python.training.basic_session_run_hooks.NanLossDuringTrainingError: "
        "NaN loss during training.",
        origin="source: tensorflow/python/training/basic_session_run_hooks.py of TensorFlow 2.21",
        weight=0.95,
    ),
    Signature(
        id="estimator-diverged",
        code="loss-nan",
        role=Role.CAUSE,
        needle="Model diverged with loss = NaN",
        pattern=r"Model diverged with loss = NaN\.",
        meaning="The loss was NaN.",
        fix="Lower the learning rate, clip the gradients, and check the last batches for "
        "non-finite values.",
        example="ERROR:tensorflow:Model diverged with loss = NaN.",
        origin="source: tensorflow/python/training/basic_session_run_hooks.py of TensorFlow 2.21",
    ),
    Signature(
        id="tf-histogram-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="Nan in summary histogram for: ",
        pattern=r"Nan in summary histogram for: (?P<name>[\w/.:-]{1,200})",
        meaning="The values of {name} are not numbers: the training diverged.",
        fix="Lower the learning rate, clip gradients, and check the batch; "
        "`tf.debugging.enable_check_numerics()` finds the operation.",
        example="InvalidArgumentError: Nan in summary histogram for: layer1/weights",
        origin="source: strings in the library of TensorFlow 2",
    ),
)
