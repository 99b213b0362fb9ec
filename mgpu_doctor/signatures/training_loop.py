"""Mistakes in the training loop: the autograd graph, the optimizer and the gradient scaler."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="backward-twice",
        code="failed-reentrant-backward",
        role=Role.CAUSE,
        needle="backward through the graph a second time",
        pattern=r"Trying to backward through the graph a second time",
        meaning="`backward()` ran twice over one graph, and its tensors were freed after the "
        "first time.",
        fix="Compute the loss again for each `backward()`; detach what is carried from step to "
        "step (`hidden = hidden.detach()`); several losses: add them and call `backward()` once.",
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
        id="leaf-modified-in-place",
        code="failed-exception",
        role=Role.CAUSE,
        needle="that requires grad is being used in an in-place operation",
        pattern=r"a (?:view of a )?leaf Variable that requires grad is being used in an in-place "
        r"operation",
        meaning="A trained parameter was changed in place outside `torch.no_grad()`.",
        fix="Do it under `with torch.no_grad():`, also for a broadcast of parameters.",
        example="RuntimeError: a leaf Variable that requires grad is being used in an in-place "
        "operation.",
        origin="source: torch/csrc/autograd/VariableTypeUtils.h of torch 2.13",
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
        example="torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed "
        "values for the following tensors have different metadata than during the forward pass.",
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
        fix="Pass `model.parameters()` again (a list, if it is used twice), after the model is "
        "built.",
        example="ValueError: optimizer got an empty parameter list",
        origin="made: SGD of an empty list, torch 2.13",
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
)
