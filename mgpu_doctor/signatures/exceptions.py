"""Errors of the training loop itself: the graph, the numbers, the process group, a NaN loss."""

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
        fix="Lower the learning rate, clip gradients, and check the batch; "
        "`torch.autograd.set_detect_anomaly(True)` finds the operation.",
        example=f"RuntimeError: the loss of this step is {spelling}",
        origin="made: a script that raises when its loss is not finite",
        weight=0.6,
    )


SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="backward-twice",
        code="failed-reentrant-backward",
        role=Role.CAUSE,
        needle="backward through the graph a second time",
        pattern=r"Trying to backward through the graph a second time",
        meaning="`backward()` ran twice over one graph, and its tensors were freed after the first "
        "time.",
        fix="Compute the loss anew for each `backward()`; detach what is carried from step to step "
        "(`hidden = hidden.detach()`); several losses: add them and call `backward()` once.",
        example="RuntimeError: Trying to backward through the graph a second time (or directly "
        "access saved tensors after they have already been freed). Saved intermediate values of "
        "the graph are freed when you call .backward() or autograd.grad(). Specify "
        "retain_graph=True if you need to backward through the graph a second time or if you need "
        "to access saved tensors after calling backward.",
        origin="made: y.backward() twice, torch 2.13",
    ),
    Signature(
        id="modified-in-place",
        code="failed-exception",
        role=Role.CAUSE,
        needle="has been modified by an inplace operation",
        pattern=r"one of the variables needed for gradient computation has been modified by an "
        r"inplace operation: \[(?P<tensor>[\w.]+ \[[\d, ]*\])\](?:, which is output \d+ of "
        r"(?P<operation>\w+))?",
        meaning="A tensor ({tensor}) that backward needs was changed in place after the forward "
        "pass. Under DDP also: two forward passes before one backward, with buffers that are "
        "broadcast.",
        fix="Write `x = x + y` instead of `x += y`, drop `inplace=True`; "
        "`torch.autograd.set_detect_anomaly(True)` shows the line. Under DDP: "
        "`broadcast_buffers=False`, or one forward pass for both inputs.",
        example="RuntimeError: one of the variables needed for gradient computation has been "
        "modified by an inplace operation: [torch.FloatTensor [3]], which is output 0 of Exp, is "
        "at version 1; expected version 0 instead. Hint: enable anomaly detection to find the "
        "operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False).",
        origin="made: add_ on the result of exp, then backward, torch 2.13",
    ),
    Signature(
        id="loss-without-gradient",
        code="failed-exception",
        role=Role.CAUSE,
        needle="does not require grad and does not have a grad_fn",
        pattern=r"element \d+ of tensors does not require grad and does not have a grad_fn",
        meaning="`backward()` was called on a loss that no trainable parameter led to.",
        fix="Look for `torch.no_grad()`, `.detach()`, `.item()` or a wholly frozen model between "
        "the parameters and the loss; with reentrant checkpointing and frozen inputs: "
        "`use_reentrant=False`.",
        example="RuntimeError: element 0 of tensors does not require grad and does not have a "
        "grad_fn",
        origin="made: backward on a tensor without a graph, torch 2.13",
    ),
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
        id="probabilities-of-nan",
        code="loss-nan",
        role=Role.CAUSE,
        needle="probability tensor contains either",
        pattern=r"probability tensor contains either `?inf`?, `?nan`? or element < 0",
        meaning="Sampling got probabilities that are NaN, infinite or negative: the model's output "
        "has diverged.",
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
        meaning="The gradients hold NaN or infinity, and clipping was told to raise on that.",
        fix=_NUMBERS,
        example="RuntimeError: The total norm of order 2.0 for gradients from `parameters` is "
        "non-finite, so it cannot be clipped. To disable this error and scale the gradients by the "
        "non-finite norm anyway, set `error_if_nonfinite=False`",
        origin="made: clip_grad_norm_(error_if_nonfinite=True) on NaN, torch 2.13",
    ),
    Signature(
        id="scaler-fp16-gradients",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Attempting to unscale FP16 gradients",
        pattern=r"Attempting to unscale FP16 gradients\.",
        meaning="The gradient scaler needs float32 parameters, but the model was converted with "
        "`.half()` (or loaded in float16).",
        fix="Keep the parameters in float32 and use `torch.autocast`; or train in bfloat16, which "
        "needs no scaler.",
        example="ValueError: Attempting to unscale FP16 gradients.",
        origin="made: GradScaler.unscale_ with half parameters, torch 2.13",
    ),
    Signature(
        id="checkpoint-recompute-differs",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Recomputed values for the following tensors have different metadata",
        pattern=r"CheckpointError: torch\.utils\.checkpoint: Recomputed values for the following "
        r"tensors have different metadata",
        meaning="Activation checkpointing ran the forward pass again and got other tensors: the "
        "module is not deterministic, or autocast or a flag changed in between.",
        fix="Make the module behave the same twice (no counters, no caches, the same autocast); "
        "`checkpoint(..., debug=True)` shows where the two runs part.",
        example="torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values "
        "for the following tensors have different metadata than during the forward pass.",
        origin="made: a function that returns another shape when it is recomputed, torch 2.13",
    ),
    Signature(
        id="optimizer-without-parameters",
        code="failed-exception",
        role=Role.CAUSE,
        needle="optimizer got an empty parameter list",
        pattern=r"ValueError: optimizer got an empty parameter list",
        meaning="The optimizer was made without parameters: all are frozen, the generator was "
        "used up before, or (under pipeline or tensor parallelism) this rank has none.",
        fix="Pass `model.parameters()` anew (a list, if it is used twice), after the model is "
        "built.",
        example="ValueError: optimizer got an empty parameter list",
        origin="made: SGD of an empty list, torch 2.13",
    ),
    Signature(
        id="scaler-without-checks",
        code="failed-exception",
        role=Role.CAUSE,
        needle="No inf checks were recorded",
        pattern=r"AssertionError: No inf checks were recorded (?:for this optimizer|prior to "
        r"update)",
        meaning="The gradient scaler found no gradient of this optimizer: nothing was "
        "backpropagated into its parameters before `scaler.step`.",
        fix="Call `scaler.scale(loss).backward()` before it; check that the optimizer holds the "
        "parameters that are trained (made after FSDP wraps the model).",
        example="AssertionError: No inf checks were recorded for this optimizer.",
        origin="made: GradScaler.step without backward, torch 2.13",
    ),
    Signature(
        id="group-initialised-twice",
        code="failed-exception",
        role=Role.CAUSE,
        needle="initialize the default process group twice",
        pattern=r"trying to initialize the default process group twice",
        meaning="`init_process_group` ran a second time: the script and its framework both call "
        "it.",
        fix="Call it once, or guard it with `if not dist.is_initialized():`.",
        example="ValueError: trying to initialize the default process group twice!",
        origin="made: init_process_group twice, torch 2.13",
    ),
    Signature(
        id="group-not-initialised",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Default process group has not been initialized",
        pattern=r"Default process group has not been initialized, please make sure to call "
        r"init_process_group",
        meaning="`torch.distributed` was used before `init_process_group` or after "
        "`destroy_process_group`.",
        fix="Call `init_process_group` once, before the first use; start the script with "
        "`torchrun`.",
        example="ValueError: Default process group has not been initialized, please make sure to "
        "call init_process_group.",
        origin="made: all_reduce without a process group, torch 2.13",
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
        weight=0.9,
        needle_tells=False,
    ),
)
