"""Further words for tensors that do not fit together: shapes, types and devices, also of older
torch, NumPy and the frameworks on top."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_SHAPES = (
    "Print the shapes of this rank's batch before the call: mostly one sample or the last batch "
    "differs, or the model's configuration does not fit the data."
)
_DEVICE = (
    "Move the model and every input to the rank's own device (`.to(device)`), also tensors that "
    "the code creates on the way (`torch.zeros(..., device=x.device)`)."
)


def _shape(
    name: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str = _SHAPES,
    weight: float = 0.85,
    needle_tells: bool = False,
) -> Signature:
    """Tensors of shapes or types that an operation cannot combine."""
    return Signature(
        id=name,
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        weight=weight,
        needle_tells=needle_tells,
    )


def _device(name: str, needle: str, pattern: str, *, example: str, origin: str) -> Signature:
    """Tensors of one operation on different devices."""
    return Signature(
        id=name,
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle=needle,
        pattern=pattern,
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example=example,
        origin=origin,
        weight=0.9,
        needle_tells=False,
    )


SIGNATURES: tuple[Signature, ...] = (
    _shape(
        "target-size-deprecated",
        "Error: Using a target size (",
        r"Error: Using a target size \((?P<target>torch\.Size\(\[[\d, ]{0,60}\]\))\) that is "
        r"different to the input size \((?P<input>torch\.Size\(\[[\d, ]{0,60}\]\))\)",
        meaning="The loss got an input of {input} and a target of {target}.",
        fix="Give both the same shape: `output.squeeze(1)` or `target.unsqueeze(1)`.",
        example="ValueError: Using a target size (torch.Size([64])) that is different to the input "
        "size (torch.Size([64, 1])) is deprecated. Please ensure they have the same size.",
        origin="source: torch/nn/functional.py of torch 2.13",
        weight=0.95,
    ),
    _shape(
        "matmul-inner-dimension",
        "mat1 dim 1 must match mat2 dim 0",
        r"mat1 dim 1 must match mat2 dim 0",
        meaning="Two matrices cannot be multiplied: their inner dimensions differ.",
        example="RuntimeError: mat1 dim 1 must match mat2 dim 0",
        origin="recalled: aten/src/ATen/native of torch 1.7",
        needle_tells=True,
    ),
    _shape(
        "dimension-out-of-range",
        "Dimension out of range (expected to be in range of",
        r"Dimension out of range \(expected to be in range of \[(?P<range>-?\d{1,3}, -?\d{1,3})\], "
        r"but got (?P<got>-?\d{1,6})\)",
        meaning="Dimension {got} was asked for, but the tensor has only dimensions {range}.",
        example="IndexError: Dimension out of range (expected to be in range of [-1, 0], but got "
        "1)",
        origin="source: strings in the library of torch 2.13",
        needle_tells=True,
    ),
    _shape(
        "batched-matmul-dimensions",
        "must be a 3D tensor",
        r"\bbatch[12] must be a 3D tensor",
        meaning="A batched product of matrices got a tensor that is no batch.",
        example="RuntimeError: batch1 must be a 3D tensor",
        origin="source: strings in the library of torch 2.13",
    ),
    _shape(
        "convolution-dimensions",
        "-dimensional input for ",
        r"Expected (?P<wanted>\d)-dimensional input for \d-dimensional weight .{1,80}?but got "
        r"(?P<got>\d)-dimensional input",
        meaning="A convolution got a tensor of {got} dimensions instead of {wanted}.",
        fix="Add the batch dimension (`x.unsqueeze(0)`), or the channels.",
        example="RuntimeError: Expected 4-dimensional input for 4-dimensional weight [64, 3, 7, "
        "7], "
        "but got 3-dimensional input of size [3, 224, 224] instead",
        origin="recalled: aten/src/ATen/native/Convolution.cpp of torch 1.10",
    ),
    _shape(
        "convolution-batched",
        ") or 4D (batched) input to ",
        r"Expected \dD \(unbatched\) or \dD \(batched\) input to (?P<call>\w{1,30}), but got input "
        r"of size: (?P<size>\[[\d, ]{0,60}\])",
        meaning="{call} got an input of shape {size}.",
        fix="Add the batch dimension (`x.unsqueeze(0)`), or the channels.",
        example="RuntimeError: Expected 3D (unbatched) or 4D (batched) input to conv2d, but got "
        "input of size: [8, 2, 3, 224, 224]",
        origin="source: strings in the library of torch 2.13",
    ),
    _shape(
        "element-numbers-differ",
        "inconsistent tensor size",
        r"(?:inconsistent tensor size|inconsistent tensor sizes), expected",
        meaning="Two tensors of an operation have different numbers of elements.",
        example="RuntimeError: inconsistent tensor size, expected tensor [10] and src [20] to have "
        "the same number of elements",
        origin="recalled: aten/src/TH of torch 0.4",
    ),
    _shape(
        "recurrent-hidden-size",
        "Expected hidden",
        r"Expected hidden(?:\[\d\])? size \((?P<wanted>[\d, ]{1,40})\), got \[?(?P<got>[\d, ]{1,40}"
        r"\d)",
        meaning="A recurrent layer got a hidden state of {got} instead of {wanted}.",
        fix="Make the state for the batch at hand; the last batch is smaller (`drop_last=True`).",
        example="RuntimeError: Expected hidden[0] size (2, 32, 128), got [2, 16, 128]",
        origin="source: torch/nn/modules/rnn.py of torch 2.13",
    ),
    _shape(
        "spatial-targets",
        "only batches of spatial targets supported",
        r"only batches of spatial targets supported",
        meaning="A segmentation loss got targets that are no batch of 2D label maps.",
        fix="Targets are class numbers of shape (N, H, W), not colours or one-hot vectors.",
        example="RuntimeError: only batches of spatial targets supported (3D tensors) but got "
        "targets of dimension: 4",
        origin="source: strings in the library of torch 2.13",
        needle_tells=True,
    ),
    _shape(
        "multi-target",
        "multi-target not supported",
        r"multi-target not supported at |0D or 1D target tensor expected, multi-target not "
        r"supported",
        meaning="A classification loss got more than one label per sample.",
        fix="Labels are class numbers of shape (N,): `target.squeeze(1)` or `target.argmax(1)`.",
        example="RuntimeError: 0D or 1D target tensor expected, multi-target not supported",
        origin="source: strings in the library of torch 2.13",
    ),
    _shape(
        "mask-shape",
        "The shape of the mask ",
        r"The shape of the mask (?P<mask>\[[\d, ]{0,60}\]) at index \d{1,3} does not match the "
        r"shape "
        r"of the indexed tensor (?P<tensor>\[[\d, ]{0,60}\])",
        meaning="A mask of shape {mask} was applied to a tensor of shape {tensor}.",
        example="IndexError: The shape of the mask [8, 12] at index 1 does not match the shape of "
        "the indexed tensor [8, 10] at index 1",
        origin="source: strings in the library of torch 2.13",
    ),
    _shape(
        "index-shape",
        "shape mismatch: ",
        r"shape mismatch: (?:value tensor of shape|indexing tensors could not be broadcast|objects "
        r"cannot be broadcast)",
        meaning="A value or an index does not have the shape of the place that it is for.",
        example="RuntimeError: shape mismatch: value tensor of shape [4] cannot be broadcast to "
        "indexing result of shape [3]",
        origin="source: strings in the library of torch 2.13",
    ),
    _shape(
        "numpy-broadcast",
        "operands could not be broadcast together",
        r"operands could not be broadcast together with (?:remapped )?shapes",
        meaning="Arrays of an operation have shapes that do not fit together.",
        example="ValueError: operands could not be broadcast together with shapes (3,4) (5,)",
        origin="made: numpy.ones((3, 4)) + numpy.ones(5), NumPy 2",
        needle_tells=True,
    ),
    _shape(
        "numpy-inhomogeneous",
        "setting an array element with a sequence",
        r"setting an array element with a sequence",
        meaning="Samples of different lengths cannot become one array.",
        fix="Pad them, or give the loader a `collate_fn`.",
        example="ValueError: setting an array element with a sequence. The requested array has an "
        "inhomogeneous shape after 1 dimensions.",
        origin="made: numpy.array of lists of different lengths, NumPy 2",
        needle_tells=True,
    ),
    _shape(
        "dtypes-of-argument",
        "to have one of the following scalar types: ",
        r"Expected tensor for argument #\d{1,2} '(?P<argument>\w{1,30})' to have one of the "
        r"following scalar types: ",
        meaning="The argument {argument} of an operation has the wrong type.",
        fix="Convert it: indices and labels are `long`, images and features float.",
        example="RuntimeError: Expected tensor for argument #1 'indices' to have one of the "
        "following scalar types: Long, Int; but got torch.cuda.FloatTensor instead",
        origin="source: strings in the library of torch 2.13",
    ),
    _shape(
        "dtypes-input-bias",
        ") and bias type (",
        r"Input type \((?P<input>[\w.]{1,40})\) and bias type \((?P<bias>[\w.]{1,40})\) should be "
        r"the same",
        meaning="A layer got an input of {input}, but its bias is {bias}.",
        fix="Use `torch.autocast`, or convert model and input to one type.",
        example="RuntimeError: Input type (torch.cuda.HalfTensor) and bias type "
        "(torch.cuda.FloatTensor) should be the same",
        origin="source: strings in the library of torch 2.13",
    ),
    _device(
        "concatenated-devices",
        "ll input tensors must be on the same device",
        r"[Aa]ll input tensors must be on the same device\. Received (?P<first>\S{1,12}) and "
        r"(?P<second>\S{1,12}\b)",
        example="RuntimeError: All input tensors must be on the same device. Received cuda:0 and "
        "cuda:1",
        origin="recalled: aten/src/ATen/native/cuda/Shape.cu of torch 1.6",
    ),
    _device(
        "indices-current-device",
        "must be on the current device",
        r"Input, output and indices must be on the current device",
        example="RuntimeError: Input, output and indices must be on the current device",
        origin="recalled: aten/src/ATen/native/cuda of torch 1.8",
    ),
    _device(
        "data-parallel-devices",
        "all tensors must be on devices[0]",
        r"all tensors must be on devices\[0\]",
        example="RuntimeError: all tensors must be on devices[0]",
        origin="recalled: torch/csrc/cuda/comm.cpp of torch 0.4",
    ),
    _device(
        "data-parallel-module-device",
        "Input is not on the same device ",
        r"Input is not on the same device (?:as|with) ",
        example="RuntimeError: Input is not on the same device as the module",
        origin="recalled: torch/nn/parallel of torch 0.4",
    ),
    _device(
        "gradient-device",
        "returned an invalid gradient at index",
        r"returned an invalid gradient at index \d{1,4} - expected (?:device|type) .{1,60}? but "
        r"got",
        example="RuntimeError: Function AddBackward0 returned an invalid gradient at index 1 - "
        "expected device cuda:0 but got cuda:1",
        origin="source: strings in the library of torch 2.13",
    ),
    _device(
        "triton-pointer-of-cpu",
        ") cannot be accessed from Triton",
        r"Pointer argument (?:\(at \d{1,4}\) )?cannot be accessed from Triton \(cpu tensor\?\)",
        example="ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)",
        origin="recalled: python/triton of Triton 2",
    ),
    _device(
        "cuda-tensor-to-numpy",
        "ensor to numpy",
        r"can't convert (?:\S{1,20} device type|CUDA) [Tt]ensor to numpy",
        example="TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to "
        "copy the tensor to host memory first.",
        origin="source: strings in the library of torch 2.13",
    ),
)
