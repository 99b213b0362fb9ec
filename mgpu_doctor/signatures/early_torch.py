"""How torch 1.0 to 1.6 worded what later versions say in other words."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_ONE_DEVICE = (
    "Move the model and every input to the rank's own device (`.to(device)`), also tensors that "
    "the code creates on the way (`torch.zeros(..., device=x.device)`)."
)
_LABELS = "Count labels from 0, below the number of classes; `ignore_index` is for padding."


def _runtime(
    name: str, number: str, code: str, *, meaning: str, fix: str, example: str
) -> Signature:
    """A signature of the line that the old THC library printed before its exception."""
    return Signature(
        id=f"thc-check-{name}",
        code=code,
        role=Role.CAUSE,
        needle="THCudaCheck FAIL file=",
        pattern=rf"THCudaCheck FAIL file=\S{{1,200}} line=\d{{1,6}} error=(?:{number}) : ",
        meaning=meaning,
        fix=fix,
        example=f"THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 {example}",
        origin="recalled: aten/src/THC/THCGeneral.cpp of torch 1.4",
        weight=0.85,
        needle_tells=False,
    )


SIGNATURES: tuple[Signature, ...] = (
    _runtime(
        "assert",
        "59|710",
        "failed-device-assert",
        meaning="A check inside a GPU kernel failed, mostly an index or label out of range.",
        fix=_LABELS + " `CUDA_LAUNCH_BLOCKING=1` shows the line.",
        example="error=59 : device-side assert triggered",
    ),
    _runtime(
        "memory",
        "2",
        "oom-device",
        meaning="A GPU's memory ran out.",
        fix="Halve the batch per rank, or see with `nvidia-smi` who else holds memory.",
        example="error=2 : out of memory",
    ),
    _runtime(
        "access",
        "4|7[0-9]|700|71[4-9]",
        "failed-illegal-access",
        meaning="A GPU kernel accessed invalid memory.",
        fix="`CUDA_LAUNCH_BLOCKING=1` shows the line; look at custom kernels and indices.",
        example="error=77 : an illegal memory access was encountered",
    ),
    _runtime(
        "device",
        "10|101|38|100|46",
        "failed-visible-devices",
        meaning="A GPU number does not exist among the visible ones, or a GPU is not available.",
        fix="Compare CUDA_VISIBLE_DEVICES with the numbers that the script uses.",
        example="error=10 : invalid device ordinal",
    ),
    _runtime(
        "architecture",
        "8|48|98|209",
        "failed-no-kernel-image",
        meaning="torch (or an extension) was built without code for this GPU's generation.",
        fix="Install a torch built for this GPU, or build the extension for it "
        "(TORCH_CUDA_ARCH_LIST).",
        example="error=48 : no kernel image is available for execution on the device",
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
        pattern=r"\bexpected device (?P<expected>[a-z]{2,8}(?::\d{1,3})?) (?:and dtype \w{1,20} )?"
        r"but got device (?P<found>[a-z]{2,8}(?::\d{1,3})?)",
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
        example="RuntimeError: Input and parameter tensors are not at the same device, found input "
        "tensor at cuda:0 and parameter tensor at cuda:1",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
    ),
    Signature(
        id="class-index-on-cpu",
        code="failed-device-assert",
        role=Role.CAUSE,
        needle="< n_classes' failed.",
        pattern=r"Assertion `(?:cur_target|t) >= 0 && (?:cur_target|t) < n_classes' failed\.",
        meaning="A label is negative or not below the number of classes.",
        fix=_LABELS,
        example="RuntimeError: Assertion `cur_target >= 0 && cur_target < n_classes' failed.  at "
        "/pytorch/aten/src/THNN/generic/ClassNLLCriterion.c:97",
        origin="recalled: aten/src/THNN/generic/ClassNLLCriterion.c of torch 1.4",
        weight=0.95,
    ),
    Signature(
        id="tensor-on-cpu",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="to be on GPU",
        pattern=r"Tensor for (?:'out'|argument #\d{1,2} '\w{1,30}') is on CPU,.{0,80}? but "
        r"expected "
        r"(?:it|them) to be on GPU",
        meaning="One operation got tensors of the CPU and of a GPU.",
        fix=_ONE_DEVICE,
        example="RuntimeError: Tensor for argument #2 'mat1' is on CPU, but expected it to be on "
        "GPU "
        "(while checking arguments for addmm)",
        origin="recalled: aten/src/ATen/TensorUtils.cpp of torch 1.7",
        weight=0.95,
    ),
    Signature(
        id="generator-device",
        code="failed-device-mismatch",
        role=Role.CAUSE,
        needle="' device type for generator but found '",
        pattern=r"Expected an? '(?P<expected>\w{2,8})' device type for generator but found "
        r"'(?P<found>\w{2,8})'",
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
        pattern=r"indices should be either on cpu or on the same device as the indexed tensor "
        r"\((?P<device>\S{1,12})\)",
        meaning="A tensor on {device} was indexed by one of another device.",
        fix=_ONE_DEVICE,
        example="RuntimeError: indices should be either on cpu or on the same device as the "
        "indexed "
        "tensor (cpu)",
        origin="source: strings in the library of torch 2.13",
        weight=0.95,
    ),
)
