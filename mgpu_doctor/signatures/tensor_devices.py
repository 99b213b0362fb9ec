"""Operations whose tensors, modules or generators are on different devices."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_ONE_DEVICE = (
    "Move the model and every input to the rank's own device (`.to(device)`), also tensors that "
    "the code creates on the way (`torch.zeros(..., device=x.device)`)."
)
_DEVICE = (
    "Move the model and every input to the rank's own device (`.to(device)`), also tensors that "
    "the code creates on the way (`torch.zeros(..., device=x.device)`)."
)

SIGNATURES: tuple[Signature, ...] = (
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
        meaning="The batch is {first}, the model's weights are {second}: another device or "
        "another precision.",
        fix="`batch = batch.to(device)` before the model, and the model itself `.to(device)`; for "
        "precision use `torch.autocast`.",
        example="RuntimeError: Input type (torch.FloatTensor) and weight type "
        "(torch.cuda.FloatTensor) should be the same or input should be a MKLDNN tensor and "
        "weight is a dense tensor",
        origin="source: aten/src/ATen/native/Convolution.cpp of torch 2.12",
    ),
    Signature(
        id="device-type-mismatch",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="xpected object of ",
        pattern=r"[Ee]xpected object of (?:device type|backend) (?P<expected>\w{2,8}) but got "
        r"(?:device type|backend) (?P<found>\w{2,8}) for (?:sequence element|argument) ",
        meaning="One operation got tensors of two devices ({expected} and {found}).",
        fix=_ONE_DEVICE,
        example="RuntimeError: Expected object of device type cuda but got device type cpu for "
        "argument #2 'mat1' in call to _th_addmm",
        origin="source: aten/src/ATen/Utils.h of torch 1.4",
        weight=0.95,
    ),
    Signature(
        id="device-mismatch-short",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="expected device ",
        pattern=r"\bexpected device (?P<expected>[a-z]{2,8}(?::\d{1,3})?) (?:and dtype \w{1,20} "
        r")?but got device (?P<found>[a-z]{2,8}(?::\d{1,3})?)",
        meaning="One operation got tensors of two devices ({expected} and {found}).",
        fix=_ONE_DEVICE,
        example="RuntimeError: expected device cuda:0 but got device cpu",
        origin="recalled: aten/src/ATen/native/TensorIterator.cpp of torch 1.4",
        weight=0.95,
    ),
    Signature(
        id="arguments-on-different-gpus",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="arguments are located on different GPUs",
        pattern=r"arguments are located on different GPUs",
        meaning="One operation got tensors of several GPUs.",
        fix=_ONE_DEVICE,
        example="RuntimeError: arguments are located on different GPUs at "
        "/pytorch/aten/src/THC/generic/THCTensorMathBlas.cu:253",
        origin="recalled: aten/src/THC of torch 1.4",
        weight=0.95,
    ),
    Signature(
        id="recurrent-device-mismatch",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="tensors are not at the same device",
        pattern=r"tensors are not at the same device, found (?:input|parameter) tensor at "
        r"(?P<first>\S{1,12}) and \w{1,12} tensor at (?P<second>\S{1,12})",
        meaning="A recurrent layer got tensors of two devices ({first} and {second}).",
        fix=_ONE_DEVICE,
        example="RuntimeError: Input and parameter tensors are not at the same device, found "
        "input tensor at cuda:0 and parameter tensor at cuda:1",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="tensor-on-cpu",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="to be on GPU",
        pattern=r"Tensor for (?:'out'|argument #\d{1,2} '\w{1,30}') is on CPU,.{0,80}? but "
        r"expected (?:it|them) to be on GPU",
        meaning="One operation got tensors of the CPU and of a GPU.",
        fix=_ONE_DEVICE,
        example="RuntimeError: Tensor for argument #2 'mat1' is on CPU, but expected it to be on "
        "GPU (while checking arguments for addmm)",
        origin="recalled: aten/src/ATen/TensorUtils.cpp of torch 1.7",
        weight=0.95,
    ),
    Signature(
        id="generator-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="' device type for generator but found '",
        pattern=r"Expected an? '(?P<expected>\w{2,8})' device type for generator but found '"
        r"(?P<found>\w{2,8})'",
        meaning="A random generator of {found} was used for a tensor of {expected}.",
        fix="Make the generator on that device (`torch.Generator(device)`); after "
        "`torch.set_default_device` or `set_default_tensor_type` give the data loader one of its "
        "own.",
        example="RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="indices-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="indices should be either on ",
        pattern=r"indices should be either on cpu or on the same device as the indexed tensor \("
        r"(?P<device>\S{1,12})\)",
        meaning="A tensor on {device} was indexed by one of another device.",
        fix=_ONE_DEVICE,
        example="RuntimeError: indices should be either on cpu or on the same device as the "
        "indexed tensor (cpu)",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="indices-current-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="must be on the current device",
        pattern=r"Input, output and indices must be on the current device",
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example="RuntimeError: Input, output and indices must be on the current device",
        origin="recalled: aten/src/ATen/native/cuda of torch 1.8",
        needle_tells=False,
    ),
    Signature(
        id="concatenated-devices",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="ll input tensors must be on the same device",
        pattern=r"[Aa]ll input tensors must be on the same device\. Received (?P<first>\S{1,12}) "
        r"and (?P<second>\S{1,12}\b)",
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example="RuntimeError: All input tensors must be on the same device. Received cuda:0 and "
        "cuda:1",
        origin="recalled: aten/src/ATen/native/cuda/Shape.cu of torch 1.6",
        needle_tells=False,
    ),
    Signature(
        id="data-parallel-devices",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="all tensors must be on devices[0]",
        pattern=r"all tensors must be on devices\[0\]",
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example="RuntimeError: all tensors must be on devices[0]",
        origin="recalled: torch/csrc/cuda/comm.cpp of torch 0.4",
        needle_tells=False,
    ),
    Signature(
        id="data-parallel-module-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="Input is not on the same device ",
        pattern=r"Input is not on the same device (?:as|with) ",
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example="RuntimeError: Input is not on the same device as the module",
        origin="recalled: torch/nn/parallel of torch 0.4",
        needle_tells=False,
    ),
    Signature(
        id="gradient-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="returned an invalid gradient at index",
        pattern=r"returned an invalid gradient at index \d{1,4} - expected (?:device|type) "
        r".{1,60}? but got",
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example="RuntimeError: Function AddBackward0 returned an invalid gradient at index 1 - "
        "expected device cuda:0 but got cuda:1",
        origin="source: strings in the library of torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="triton-pointer-of-cpu",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle=") cannot be accessed from Triton",
        pattern=r"Pointer argument (?:\(at \d{1,4}\) )?cannot be accessed from Triton \(cpu "
        r"tensor\?\)",
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example="ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)",
        origin="recalled: python/triton of Triton 2",
        needle_tells=False,
    ),
    Signature(
        id="cuda-tensor-to-numpy",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="ensor to numpy",
        pattern=r"can't convert (?:\S{1,20} device type|CUDA) [Tt]ensor to numpy",
        meaning="One operation got tensors of several devices.",
        fix=_DEVICE,
        example="TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to "
        "copy the tensor to host memory first.",
        origin="source: strings in the library of torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="ddp-wrong-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="module must have its parameters and buffers on device",
        pattern=r"module must have its parameters and buffers on device (?P<device>\S{1,20}) "
        r"\(device_ids\[0\]\) but found one of them on device: (?P<other>\w{1,20}(?::\d{1,4})?)",
        meaning="The module is on {other}, and DataParallel wants it on {device}.",
        fix="Move the module first: `model.to('{device}')`.",
        example="RuntimeError: module must have its parameters and buffers on device cuda:2 "
        "(device_ids[0]) but found one of them on device: cpu",
        origin="source: torch/nn/parallel/data_parallel.py of torch 2.13",
        weight=0.95,
    ),
)
