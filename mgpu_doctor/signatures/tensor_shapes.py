"""Tensors whose shapes an operation or a layer cannot combine: torch and NumPy."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_SHAPES = (
    "Print the shapes just before the line that the traceback names, and compare the layer's sizes "
    "with the data's: often one sample or the last batch differs."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="matmul-shapes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="shapes cannot be multiplied",
        pattern=r"mat1 and mat2 shapes cannot be multiplied \((?P<left>\d+x\d+) and "
        r"(?P<right>\d+x\d+)\)",
        meaning="A linear layer or matrix product got {left}, but its weight is {right}: the "
        "inner sizes differ.",
        fix="Make the layer's input size that of the data. " + _SHAPES,
        example="RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x128 and 64x10)",
        origin="made: a 4x128 batch into a layer for 64 features, torch 2.13",
        needle_tells=False,
        more_heads=("mat1 and mat2 shapes cannot be",),
    ),
    Signature(
        id="matmul-shapes-old",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="size mismatch, m1: [",
        pattern=r"size mismatch, m1: \[(?P<left>\d+ x \d+)\], m2: \[(?P<right>\d+ x \d+)\]",
        meaning="A linear layer or matrix product got {left}, but its weight is {right}: the "
        "inner sizes differ.",
        fix="Make the layer's input size that of the data. " + _SHAPES,
        example="RuntimeError: size mismatch, m1: [64 x 400], m2: [120 x 84] at "
        "/pytorch/aten/src/TH/generic/THTensorMath.cpp:41",
        origin="source: aten/src/TH/generic/THTensorMath.cpp of torch 1.5",
    ),
    Signature(
        id="matmul-inner-dimension",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="mat1 dim 1 must match mat2 dim 0",
        pattern=r"mat1 dim 1 must match mat2 dim 0",
        meaning="Two matrices cannot be multiplied: their inner dimensions differ.",
        fix=_SHAPES,
        example="RuntimeError: mat1 dim 1 must match mat2 dim 0",
        origin="recalled: aten/src/ATen/native of torch 1.7",
        weight=0.85,
    ),
    Signature(
        id="batched-matmul-shapes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Expected size for first two dimensions of batch2",
        pattern=r"Expected size for first two dimensions of batch2 tensor to be: \["
        r"(?P<expected>[\d, ]+)\] but got: \[(?P<got>[\d, ]+)\]",
        meaning="A batched matrix product (attention) needs [{expected}] in its second operand "
        "and got [{got}].",
        fix="Make batch size, heads and head width of queries, keys and values agree. " + _SHAPES,
        example="RuntimeError: Expected size for first two dimensions of batch2 tensor to be: [2, "
        "4] but got: [2, 5].",
        origin="made: torch.bmm of 3x4 and 5x6 matrices, torch 2.13",
    ),
    Signature(
        id="batched-matmul-dimensions",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="must be a 3D tensor",
        pattern=r"\bbatch[12] must be a 3D tensor",
        meaning="A batched product of matrices got a tensor that is no batch.",
        fix=_SHAPES,
        example="RuntimeError: batch1 must be a 3D tensor",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="convolution-channels",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle=", expected input[",
        pattern=r"Given groups=\d+,? weight of size \[?(?P<weight>[\d, x]+)\]?, expected input\["
        r"(?P<input>[\d, x]+)\] to have (?P<expected>\d+) channels, but got (?P<got>\d+) channels",
        meaning="A convolution is made for {expected} channels and got {got} (input [{input}]).",
        fix="Convert the images to {expected} channels, or make the first layer take {got}.",
        example="RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected input[4, 1, "
        "28, 28] to have 3 channels, but got 1 channels instead",
        origin="made: a grey image into a convolution for three channels, torch 2.13",
        more_heads=("RuntimeError: Given groups=1, weight of size",),
    ),
    Signature(
        id="convolution-dimensions",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="-dimensional input for ",
        pattern=r"Expected (?P<wanted>\d)-dimensional input for \d-dimensional weight .{1,80}?but "
        r"got (?P<got>\d)-dimensional input",
        meaning="A convolution got a tensor of {got} dimensions instead of {wanted}.",
        fix="Add the batch dimension (`x.unsqueeze(0)`), or the channels.",
        example="RuntimeError: Expected 4-dimensional input for 4-dimensional weight [64, 3, 7, "
        "7], but got 3-dimensional input of size [3, 224, 224] instead",
        origin="recalled: aten/src/ATen/native/Convolution.cpp of torch 1.10",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="convolution-batched",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle=") or 4D (batched) input to ",
        pattern=r"Expected \dD \(unbatched\) or \dD \(batched\) input to (?P<call>\w{1,30}), but "
        r"got input of size: (?P<size>\[[\d, ]{0,60}\])",
        meaning="{call} got an input of shape {size}.",
        fix="Add the batch dimension (`x.unsqueeze(0)`), or the channels.",
        example="RuntimeError: Expected 3D (unbatched) or 4D (batched) input to conv2d, but got "
        "input of size: [8, 2, 3, 224, 224]",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="kernel-larger-than-input",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Calculated padded input size per channel",
        pattern=r"Calculated padded input size per channel: \((?P<input>[\d x]+)\)\. Kernel size: "
        r"\((?P<kernel>[\d x]+)\)",
        meaning="A convolution with a kernel of {kernel} got an input of only {input}.",
        fix="Use larger images, fewer strides before it, or padding.",
        example="RuntimeError: Calculated padded input size per channel: (4 x 4). Kernel size: (7 "
        "x 7). Kernel size can't be greater than actual input size",
        origin="made: a 7x7 convolution on a 4x4 image, torch 2.13",
    ),
    Signature(
        id="broadcast-sizes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="at non-singleton dimension",
        pattern=r"The size of tensor a \((?P<left>\d+)\) must match the size of tensor b \("
        r"(?P<right>\d+)\) at non-singleton dimension (?P<dimension>\d+)",
        meaning="Two tensors that are combined element by element have sizes {left} and {right} "
        "in dimension {dimension}.",
        fix="Use `drop_last=True` in the DataLoader if only the last batch is smaller. " + _SHAPES,
        example="RuntimeError: The size of tensor a (10) must match the size of tensor b (11) at "
        "non-singleton dimension 1",
        origin="made: a sum of tensors of 10 and 11 columns, torch 2.13",
        more_heads=("RuntimeError: The size of tensor a (",),
    ),
    Signature(
        id="numpy-broadcast",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="operands could not be broadcast together",
        pattern=r"operands could not be broadcast together with (?:remapped )?shapes",
        meaning="Arrays of an operation have shapes that do not fit together.",
        fix=_SHAPES,
        example="ValueError: operands could not be broadcast together with shapes (3,4) (5,)",
        origin="made: numpy.ones((3, 4)) + numpy.ones(5), NumPy 2",
        weight=0.85,
    ),
    Signature(
        id="expanded-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="The expanded size of the tensor",
        pattern=r"The expanded size of the tensor \((?P<wanted>\d+)\) must match the existing "
        r"size \((?P<size>\d+)\) at non-singleton dimension (?P<dimension>\d+)",
        meaning="A tensor of size {size} in dimension {dimension} was to be broadcast to "
        "{wanted}: often a mask or positions for another sequence length.",
        fix="Make mask, positions and batch of one length (`max_length`, padding). " + _SHAPES,
        example="RuntimeError: The expanded size of the tensor (2) must match the existing size "
        "(3) at non-singleton dimension 0.  Target sizes: [2, 4].  Tensor sizes: [3, 1]",
        origin="made: expand of three rows to two, torch 2.13",
    ),
    Signature(
        id="view-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="' is invalid for input of size",
        pattern=r"shape '\[(?P<shape>[-\d, ]+)\]' is invalid for input of size (?P<size>\d+)",
        meaning="A reshape to [{shape}] does not fit the {size} elements of the tensor.",
        fix="Reshape by `x.size(0)` instead of a fixed batch size, or use `drop_last=True` if "
        "only the last batch is smaller.",
        example="RuntimeError: shape '[3, -1]' is invalid for input of size 40",
        origin="made: view(3, -1) of 40 elements, torch 2.13",
    ),
    Signature(
        id="element-numbers-differ",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="inconsistent tensor size",
        pattern=r"(?:inconsistent tensor size|inconsistent tensor sizes), expected",
        meaning="Two tensors of an operation have different numbers of elements.",
        fix=_SHAPES,
        example="RuntimeError: inconsistent tensor size, expected tensor [10] and src [20] to "
        "have the same number of elements",
        origin="recalled: aten/src/TH of torch 0.4",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="concatenated-sizes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="must match except in dimension",
        pattern=r"Sizes of tensors must match except in dimension (?P<dimension>\d+)\.? ",
        meaning="Tensors that are put together with `torch.cat` differ in another dimension than "
        "{dimension}.",
        fix="Pad or crop them to one size before `torch.cat`. " + _SHAPES,
        example="RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 4 "
        "but got size 3 for tensor number 1 in the list.",
        origin="made: torch.cat of tensors of 4 and 3 rows, torch 2.13",
    ),
    Signature(
        id="samples-of-unequal-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="stack expects each tensor to be equal size",
        pattern=r"stack expects each tensor to be equal size, but got \[(?P<left>[\d, ]*)\] at "
        r"entry (?P<first>\d+) and \[(?P<right>[\d, ]*)\] at entry (?P<second>\d+)",
        meaning="Samples of one batch differ in size ([{left}] and [{right}]), so the data loader "
        "cannot stack them.",
        fix="Crop or resize in the data set, or give the loader a `collate_fn` that pads "
        "(`torch.nn.utils.rnn.pad_sequence`).",
        example="RuntimeError: stack expects each tensor to be equal size, but got [1] at entry 0 "
        "and [2] at entry 1",
        origin="made: a data set whose samples differ in length, torch 2.13",
    ),
    Signature(
        id="numpy-inhomogeneous",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="setting an array element with a sequence",
        pattern=r"setting an array element with a sequence",
        meaning="Samples of different lengths cannot become one array.",
        fix="Pad them, or give the loader a `collate_fn`.",
        example="ValueError: setting an array element with a sequence. The requested array has an "
        "inhomogeneous shape after 1 dimensions.",
        origin="made: numpy.array of lists of different lengths, NumPy 2",
        weight=0.85,
    ),
    Signature(
        id="normalized-shape",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Given normalized_shape=",
        pattern=r"Given normalized_shape=\[(?P<shape>[\d, ]+)\], expected input with shape \[\*, "
        r"[\d, ]+\], but got input of size\[(?P<input>[\d, ]+)\]",
        meaning="A layer norm made for [{shape}] got [{input}].",
        fix="Make its size that of the hidden layer before it. " + _SHAPES,
        example="RuntimeError: Given normalized_shape=[8], expected input with shape [*, 8], but "
        "got input of size[2, 4]",
        origin="made: LayerNorm(8) on 4 features, torch 2.13",
    ),
    Signature(
        id="batch-norm-channels",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="running_mean should contain",
        pattern=r"running_mean should contain (?P<got>\d+) elements not (?P<expected>\d+)",
        meaning="A batch norm made for {expected} channels got {got}.",
        fix="Make its size that of the layer before it. " + _SHAPES,
        example="RuntimeError: running_mean should contain 4 elements not 8",
        origin="made: BatchNorm2d(8) on 4 channels, torch 2.13",
    ),
    Signature(
        id="batch-of-one",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="value per channel when training",
        pattern=r"Expected more than 1 value per channel when training, got input size "
        r"torch\.Size\(\[(?P<shape>[\d, ]+)\]\)",
        meaning="Batch normalisation got a batch of one sample ([{shape}]): usually the last, "
        "smaller batch.",
        fix="`DataLoader(..., drop_last=True)`, or a larger batch per rank.",
        example="ValueError: Expected more than 1 value per channel when training, got input size "
        "torch.Size([1, 4])",
        origin="made: BatchNorm1d in training mode on one sample, torch 2.13",
    ),
    Signature(
        id="recurrent-input-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="must be equal to input_size",
        pattern=r"input\.size\(-1\) must be equal to input_size\. Expected (?P<expected>\d+), got "
        r"(?P<got>\d+)",
        meaning="A recurrent layer made for {expected} features got {got}.",
        fix="Make its `input_size` that of the data, or give it `batch_first=True`. " + _SHAPES,
        example="RuntimeError: input.size(-1) must be equal to input_size. Expected 8, got 4",
        origin="made: LSTM(8, 4) on 4 features, torch 2.13",
    ),
    Signature(
        id="recurrent-hidden-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Expected hidden",
        pattern=r"Expected hidden(?:\[\d\])? size \((?P<wanted>[\d, ]{1,40})\), got \[?"
        r"(?P<got>[\d, ]{1,40}\d)",
        meaning="A recurrent layer got a hidden state of {got} instead of {wanted}.",
        fix="Make the state for the batch at hand; the last batch is smaller (`drop_last=True`).",
        example="RuntimeError: Expected hidden[0] size (2, 32, 128), got [2, 16, 128]",
        origin="source: torch/nn/modules/rnn.py of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="dimension-out-of-range",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Dimension out of range (expected to be in range of",
        pattern=r"Dimension out of range \(expected to be in range of \[(?P<range>-?\d{1,3}, "
        r"-?\d{1,3})\], but got (?P<got>-?\d{1,6})\)",
        meaning="Dimension {got} was asked for, but the tensor has only dimensions {range}.",
        fix=_SHAPES,
        example="IndexError: Dimension out of range (expected to be in range of [-1, 0], but got "
        "1)",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
    ),
    Signature(
        id="mask-shape",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="The shape of the mask ",
        pattern=r"The shape of the mask (?P<mask>\[[\d, ]{0,60}\]) at index \d{1,3} does not "
        r"match the shape of the indexed tensor (?P<tensor>\[[\d, ]{0,60}\])",
        meaning="A mask of shape {mask} was applied to a tensor of shape {tensor}.",
        fix=_SHAPES,
        example="IndexError: The shape of the mask [8, 12] at index 1 does not match the shape of "
        "the indexed tensor [8, 10] at index 1",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="index-shape",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="shape mismatch: ",
        pattern=r"shape mismatch: (?:value tensor of shape|indexing tensors could not be "
        r"broadcast|objects cannot be broadcast)",
        meaning="A value or an index does not have the shape of the place that it is for.",
        fix=_SHAPES,
        example="RuntimeError: shape mismatch: value tensor of shape [4] cannot be broadcast to "
        "indexing result of shape [3]",
        origin="source: strings in the library of torch 2.13",
        weight=0.85,
    ),
)
