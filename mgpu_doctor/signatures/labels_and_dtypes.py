"""Labels, indices and data types that a loss or an operation does not accept."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="loss-batch-sizes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="to match target batch_size",
        pattern=r"Expected input batch_size \((?P<left>\d+)\) to match target batch_size \("
        r"(?P<right>\d+)\)",
        meaning="The loss got {left} predictions for {right} targets.",
        fix="Check how the model reshapes its output: often a view with a wrong first dimension.",
        example="ValueError: Expected input batch_size (4) to match target batch_size (5).",
        origin="made: cross-entropy of 4 predictions and 5 targets, torch 2.13",
    ),
    Signature(
        id="target-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Target size (torch.Size(",
        pattern=r"ValueError: Target size \(torch\.Size\((?P<target>\[[\d, ]{0,60}\])\)\) must be "
        r"the same as input size \(torch\.Size\((?P<input>\[[\d, ]{0,60}\])\)\)",
        meaning="The loss got predictions of shape {input} and targets of shape {target}.",
        fix="Bring both to one shape (`squeeze(-1)`, `unsqueeze(1)`).",
        example="ValueError: Target size (torch.Size([4])) must be the same as input size "
        "(torch.Size([4, 1]))",
        origin="source: torch/nn/functional.py of torch 2.13",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="target-size-deprecated",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Error: Using a target size (",
        pattern=r"Error: Using a target size \((?P<target>torch\.Size\(\[[\d, ]{0,60}\]\))\) that "
        r"is different to the input size \((?P<input>torch\.Size\(\[[\d, ]{0,60}\]\))\)",
        meaning="The loss got an input of {input} and a target of {target}.",
        fix="Give both the same shape: `output.squeeze(1)` or `target.unsqueeze(1)`.",
        example="ValueError: Using a target size (torch.Size([64])) that is different to the "
        "input size (torch.Size([64, 1])) is deprecated. Please ensure they have the same size.",
        origin="source: torch/nn/functional.py of torch 2.13",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="spatial-targets",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="only batches of spatial targets supported",
        pattern=r"only batches of spatial targets supported",
        meaning="A segmentation loss got targets that are no batch of 2D label maps.",
        fix="Targets are class numbers of shape (N, H, W), not colours or one-hot vectors.",
        example="RuntimeError: only batches of spatial targets supported (3D tensors) but got "
        "targets of dimension: 4",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="multi-target",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="multi-target not supported",
        pattern=r"multi-target not supported at |0D or 1D target tensor expected, multi-target "
        r"not supported",
        meaning="A classification loss got more than one label per sample.",
        fix="Labels are class numbers of shape (N,): `target.squeeze(1)` or `target.argmax(1)`.",
        example="RuntimeError: 0D or 1D target tensor expected, multi-target not supported",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="target-out-of-bounds",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" is out of bounds.",
        pattern=r"IndexError: Target (?P<target>-?\d+) is out of bounds\.",
        meaning="Label {target} is not below the number of classes that the model predicts.",
        fix="Make the last layer as wide as there are classes, count labels from 0, and use "
        "`ignore_index` for padding.",
        example="IndexError: Target 10 is out of bounds.",
        origin="made: label 10 of 10 classes in cross-entropy on the CPU, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="index-out-of-bounds",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" is out of bounds for dimension ",
        pattern=r"(?:Index|Runtime)Error: index (?P<index>-?\d+) is out of bounds for "
        r"(?:dimension|axis) (?P<dimension>\d+) with size (?P<size>\d+)",
        meaning="Index {index} was used in dimension {dimension}, which holds {size}.",
        fix="Look at where the index comes from (labels, token ids, lengths), at the line that "
        "the traceback names.",
        example="IndexError: index 5 is out of bounds for dimension 0 with size 3",
        origin="made: element 5 of a tensor of 3, torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="embedding-out-of-range",
        code="failed-exception",
        role=Role.CAUSE,
        needle="index out of range in self",
        pattern=r"IndexError: index out of range in self",
        meaning="A token or category number is not below the size of the embedding table.",
        fix="Make `num_embeddings` larger than the largest id (`tokenizer` and model must belong "
        "together; resize with `model.resize_token_embeddings(len(tokenizer))`).",
        example="IndexError: index out of range in self",
        origin="made: id 10 in an embedding of 10 rows on the CPU, torch 2.13",
    ),
    Signature(
        id="dtypes-mixed",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="to have the same dtype, but got: ",
        pattern=r"expected (?:m1 and m2|mat1 and mat2|scalar type \w+) to have the same dtype, "
        r"but got: (?P<first>[\w:]+) != (?P<second>[\w:]+)",
        meaning="A matrix product got {first} and {second}.",
        fix="Convert one of them (`.to(x.dtype)`); NumPy data is double unless converted with "
        "`.float()`; for half precision use `torch.autocast` instead of `.half()`.",
        example="RuntimeError: expected m1 and m2 to have the same dtype, but got: double != float",
        origin="made: a double batch times a float weight, torch 2.13",
    ),
    Signature(
        id="dtypes-scalar-type",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="expected scalar type ",
        pattern=r"expected scalar type (?P<first>\w+) but found (?P<second>\w+)",
        meaning="An operation needs {first} and got {second}.",
        fix="Convert the tensor (`.long()` for labels, `.float()` for data); for half precision "
        "use `torch.autocast` instead of `.half()`.",
        example="RuntimeError: expected scalar type Half but found Float",
        origin="source: aten/src/ATen/core/TensorMethods.cpp of torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="dtypes-of-target",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="expected target dtype to be Long or Byte",
        pattern=r"expected target dtype to be Long or Byte, but got (?P<got>\w+)",
        meaning="The loss needs class numbers as labels and got {got}.",
        fix="Convert the labels with `.long()`, or use a loss for real-valued targets.",
        example="RuntimeError: expected target dtype to be Long or Byte, but got Double",
        origin="made: cross-entropy with labels of type double, torch 2.13",
    ),
    Signature(
        id="dtypes-of-linear",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="must have the same dtype, but got",
        pattern=r"mat1 and mat2 must have the same dtype, but got (?P<first>\w+) and "
        r"(?P<second>\w+)",
        meaning="A linear layer got {first} data and has {second} weights.",
        fix="Convert the batch (`.to(weight.dtype)`), or run the model under `torch.autocast` "
        "instead of `.half()`.",
        example="RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half",
        origin="made: a float batch into a half-precision layer, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="dtypes-of-argument",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="to have one of the following scalar types: ",
        pattern=r"Expected tensor for argument #\d{1,2} '(?P<argument>\w{1,30})' to have one of "
        r"the following scalar types: ",
        meaning="The argument {argument} of an operation has the wrong type.",
        fix="Convert it: indices and labels are `long`, images and features float.",
        example="RuntimeError: Expected tensor for argument #1 'indices' to have one of the "
        "following scalar types: Long, Int; but got torch.cuda.FloatTensor instead",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="dtypes-input-bias",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle=") and bias type (",
        pattern=r"Input type \((?P<input>[\w.]{1,40})\) and bias type \((?P<bias>[\w.]{1,40})\) "
        r"should be the same",
        meaning="A layer got an input of {input}, but its bias is {bias}.",
        fix="Use `torch.autocast`, or convert model and input to one type.",
        example="RuntimeError: Input type (torch.cuda.HalfTensor) and bias type "
        "(torch.cuda.FloatTensor) should be the same",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
)
