"""What PyTorch raises where shapes, types or devices do not fit together."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_SHAPES = (
    "Print the shapes just before the line that the traceback names, and compare the layer's sizes "
    "with the data's."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="matmul-shapes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="shapes cannot be multiplied",
        pattern=r"mat1 and mat2 shapes cannot be multiplied "
        r"\((?P<left>\d+x\d+) and (?P<right>\d+x\d+)\)",
        meaning="A linear layer or matrix product got {left}, but its weight is {right}: the inner "
        "sizes differ.",
        fix="Make the layer's input size that of the data. " + _SHAPES,
        example="RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x128 and 64x10)",
        origin="made: a 4x128 batch into a layer for 64 features, torch 2.13",
        more_heads=("mat1 and mat2 shapes cannot be",),
        needle_tells=False,
    ),
    Signature(
        id="matmul-shapes-old",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="size mismatch, m1: [",
        pattern=r"size mismatch, m1: \[(?P<left>\d+ x \d+)\], m2: \[(?P<right>\d+ x \d+)\]",
        meaning="A linear layer or matrix product got {left}, but its weight is {right}: the inner "
        "sizes differ.",
        fix="Make the layer's input size that of the data. " + _SHAPES,
        example="RuntimeError: size mismatch, m1: [64 x 400], m2: [120 x 84] at "
        "/pytorch/aten/src/TH/generic/THTensorMath.cpp:41",
        origin="source: aten/src/TH/generic/THTensorMath.cpp of torch 1.5",
    ),
    Signature(
        id="batched-matmul-shapes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Expected size for first two dimensions of batch2",
        pattern=r"Expected size for first two dimensions of batch2 tensor to be: "
        r"\[(?P<expected>[\d, ]+)\] but got: \[(?P<got>[\d, ]+)\]",
        meaning="A batched matrix product (attention) needs [{expected}] in its second operand and "
        "got [{got}].",
        fix="Make batch size, heads and head width of queries, keys and values agree. " + _SHAPES,
        example="RuntimeError: Expected size for first two dimensions of batch2 tensor to be: [2, "
        "4] but got: [2, 5].",
        origin="made: torch.bmm of 3x4 and 5x6 matrices, torch 2.13",
    ),
    Signature(
        id="convolution-channels",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle=", expected input[",
        pattern=r"Given groups=\d+,? weight of size \[?(?P<weight>[\d, x]+)\]?, expected "
        r"input\[(?P<input>[\d, x]+)\] to have (?P<expected>\d+) channels, but got (?P<got>\d+) "
        r"channels",
        meaning="A convolution is made for {expected} channels and got {got} (input [{input}]).",
        fix="Convert the images to {expected} channels, or make the first layer take {got}.",
        example="RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected "
        "input[4, 1, 28, 28] to have 3 channels, but got 1 channels instead",
        origin="made: a grey image into a convolution for three channels, torch 2.13",
        more_heads=("RuntimeError: Given groups=1, weight of size",),
    ),
    Signature(
        id="broadcast-sizes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="at non-singleton dimension",
        pattern=r"The size of tensor a \((?P<left>\d+)\) must match the size of tensor b "
        r"\((?P<right>\d+)\) at non-singleton dimension (?P<dimension>\d+)",
        meaning="Two tensors that are combined element by element have sizes {left} and {right} in "
        "dimension {dimension}.",
        fix="Use `drop_last=True` in the DataLoader if only the last batch is smaller. " + _SHAPES,
        example="RuntimeError: The size of tensor a (10) must match the size of tensor b (11) at "
        "non-singleton dimension 1",
        origin="made: a sum of tensors of 10 and 11 columns, torch 2.13",
        more_heads=("RuntimeError: The size of tensor a (",),
    ),
    Signature(
        id="view-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="' is invalid for input of size",
        pattern=r"shape '\[(?P<shape>[-\d, ]+)\]' is invalid for input of size (?P<size>\d+)",
        meaning="A reshape to [{shape}] does not fit the {size} elements that came.",
        fix="Reshape by `x.size(0)` instead of a fixed batch size, or use `drop_last=True` if "
        "only the last batch is smaller.",
        example="RuntimeError: shape '[3, -1]' is invalid for input of size 40",
        origin="made: view(3, -1) of 40 elements, torch 2.13",
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
        id="expanded-size",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="The expanded size of the tensor",
        pattern=r"The expanded size of the tensor \((?P<wanted>\d+)\) must match the existing size "
        r"\((?P<size>\d+)\) at non-singleton dimension (?P<dimension>\d+)",
        meaning="A tensor of size {size} in dimension {dimension} was to be broadcast to {wanted}: "
        "often a mask or positions for another sequence length.",
        fix="Make mask, positions and batch of one length (`max_length`, padding). " + _SHAPES,
        example="RuntimeError: The expanded size of the tensor (2) must match the existing size "
        "(3) at non-singleton dimension 0.  Target sizes: [2, 4].  Tensor sizes: [3, 1]",
        origin="made: expand of three rows to two, torch 2.13",
    ),
    Signature(
        id="normalized-shape",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="Given normalized_shape=",
        pattern=r"Given normalized_shape=\[(?P<shape>[\d, ]+)\], expected input with shape "
        r"\[\*, [\d, ]+\], but got input of size\[(?P<input>[\d, ]+)\]",
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
        id="index-out-of-bounds",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" is out of bounds for dimension ",
        pattern=r"(?:Index|Runtime)Error: index (?P<index>-?\d+) is out of bounds for "
        r"(?:dimension|axis) (?P<dimension>\d+) with size (?P<size>\d+)",
        meaning="Index {index} was used in dimension {dimension}, which holds {size}.",
        fix="Look at where the index comes from (labels, token ids, lengths), at the line that the "
        "traceback names.",
        example="IndexError: index 5 is out of bounds for dimension 0 with size 3",
        origin="made: element 5 of a tensor of 3, torch 2.13",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="loss-batch-sizes",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="to match target batch_size",
        pattern=r"Expected input batch_size \((?P<left>\d+)\) to match target batch_size "
        r"\((?P<right>\d+)\)",
        meaning="The loss got {left} predictions for {right} targets.",
        fix="Check how the model reshapes its output: often a view with a wrong first dimension.",
        example="ValueError: Expected input batch_size (4) to match target batch_size (5).",
        origin="made: cross-entropy of 4 predictions and 5 targets, torch 2.13",
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
        id="devices-mixed",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="Expected all tensors to be on the same device",
        pattern=r"Expected all tensors to be on the same device, but (?:found at least two "
        r"devices, (?P<first>[\w:]+) and (?P<second>[\w:]+)|got \w+ is on (?P<one>[\w:]+), "
        r"different from other tensors on (?P<other>[\w:]+))",
        meaning="One operation got tensors of two devices.",
        fix="Move the batch and every tensor made in the loop with `.to(device)`, where `device` "
        "is this rank's GPU (`torch.device('cuda', local_rank)`); buffers belong in "
        "`register_buffer`. Call `torch.cuda.set_device(local_rank)` before anything is put on a "
        "GPU.",
        example="RuntimeError: Expected all tensors to be on the same device, but found at least "
        "two devices, cuda:0 and cpu!",
        origin="source: aten/src/ATen/TensorIterator.cpp of torch 2.12",
    ),
    Signature(
        id="device-unexpected",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="is not on the expected device",
        pattern=r"Tensor on device (?P<first>[\w:]+) is not on the expected device "
        r"(?P<second>[\w:]+)!",
        meaning="An operation that runs on {second} got a tensor on {first}.",
        fix="Move it with `.to(device)`. A tensor on `meta` was never given its values: load the "
        "weights or call `to_empty(device=...)` first.",
        example="RuntimeError: Tensor on device meta is not on the expected device cpu!",
        origin="made: a layer on the meta device with a batch on the CPU, torch 2.13",
    ),
    Signature(
        id="devices-input-weight",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle=") and weight type (",
        pattern=r"Input type \((?P<first>[\w.]+)\) and weight type \((?P<second>[\w.]+)\) should "
        r"be the same",
        meaning="The batch is {first}, the model's weights are {second}: another device or another "
        "precision.",
        fix="`batch = batch.to(device)` before the model, and the model itself `.to(device)`; for "
        "precision use `torch.autocast`.",
        example="RuntimeError: Input type (torch.FloatTensor) and weight type "
        "(torch.cuda.FloatTensor) should be the same or input should be a MKLDNN tensor and weight "
        "is a dense tensor",
        origin="source: aten/src/ATen/native/Convolution.cpp of torch 2.12",
    ),
    Signature(
        id="dtypes-mixed",
        code="failed-shape-mismatch",
        role=Role.CAUSE,
        needle="to have the same dtype, but got: ",
        pattern=r"expected (?:m1 and m2|mat1 and mat2|scalar type \w+) to have the same dtype, but "
        r"got: (?P<first>[\w:]+) != (?P<second>[\w:]+)",
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
)
