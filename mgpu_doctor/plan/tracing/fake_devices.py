"""Fake tensors that claim to be on a GPU, and modules of them that can be converted and copied.

torch itself cannot change fake weights in place (`module.to(…)`, `module.half()`), and its copies
of them (`copy.deepcopy`) have two storages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

_FLOAT32 = """
__pow__ __rpow__ acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss
cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 frobenius_norm group_norm
hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2 log_softmax logsumexp
margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss native_layer_norm nll_loss
norm nuclear_norm pdist poisson_nll_loss pow prod reciprocal renorm rsqrt sinh smooth_l1_loss
soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss linalg_vector_norm rms_norm
"""
_IN_FLOAT32 = frozenset(_FLOAT32.split())
"""What autocast computes in float32 on CUDA but not on a CPU, by the names that users call
(AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE in ATen/autocast_mode.h, torch 2.13)."""
_DROPS = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
"""Position of attention's argument `dropout_p`."""
_SHORT = (torch.bfloat16, torch.float16)


class LikeCuda(TorchFunctionMode):
    """Makes CPU tensors, real or fake, behave as on CUDA during forward and backward."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "dropout":
            return _dropped(func, args, kwargs)
        if name in _DROPS:
            args, kwargs = _without_dropout(_DROPS[name], args, kwargs)
        if name in _IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_long(arg) for arg in args)
            kwargs = {key: _long(each) for key, each in kwargs.items()}
        elif any(_is_cuda(each) for each in (*args, *kwargs.values())):
            if func is torch.device:
                return torch.device("cpu")
            args = tuple("cpu" if _is_cuda(each) else each for each in args)
            kwargs = {key: "cpu" if _is_cuda(each) else each for key, each in kwargs.items()}
        return func(*args, **kwargs)


@contextmanager
def gpus_pretended() -> Iterator[None]:
    """Redirects the user's own autocast on CUDA to the CPU, and ignores its choice of a device."""
    begin, choose = torch.autocast.__init__, torch.cuda.set_device

    def on_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    torch.autocast.__init__ = on_cpu  # type: ignore[method-assign]
    torch.cuda.set_device = lambda device: None  # noqa: ARG005
    try:
        yield
    finally:
        torch.autocast.__init__ = begin  # type: ignore[method-assign]
        torch.cuda.set_device = choose


def _dropped(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Dropout as on CUDA, which keeps one byte per element for the mask."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    training = given.get("training", given.get("train", True))
    if training and not given.get("inplace") and 0 < given.get("p", 0.5) < 1:
        return torch.native_dropout(given["input"], given.get("p", 0.5), True)[0]
    return func(*args, **kwargs)


def _without_dropout(place: int, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Attention as on CUDA, which recomputes the dropout mask in backward from a seed, unless the
    attention weights are requested."""
    if kwargs.get("need_weights"):
        return args, kwargs
    args = (*args[:place], 0.0, *args[place + 1 :]) if len(args) > place else args
    return args, {key: 0.0 if key == "dropout_p" else each for key, each in kwargs.items()}


def _long(value: Any) -> Any:
    short = isinstance(value, torch.Tensor) and value.dtype in _SHORT
    return value.float() if short else value


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


@contextmanager
def weights_replaced_on_conversion() -> Iterator[None]:
    """While active, a conversion or a copy gives a module new weights; shared weights stay
    shared."""
    known: dict[
        int, tuple[nn.Parameter, nn.Parameter]
    ] = {}  # keeps the old ones alive, so that their ids are not reused
    before = nn.Module._apply

    def converted(old: nn.Parameter, fn: Callable[[Any], Any]) -> nn.Parameter:
        with torch.no_grad():
            new: nn.Parameter = fn(old)
        if new is old:
            return old
        if id(old) not in known:
            known[id(old)] = old, nn.Parameter(new, old.requires_grad)
        return known[id(old)][1]

    def apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        for child in module.children() if recurse else ():
            child._apply(fn)
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = converted(weight, fn)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    nn.Module._apply = apply  # type: ignore[method-assign]
    copied_before = FakeTensor.__deepcopy__
    FakeTensor.__deepcopy__ = _deep_copy  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]
        FakeTensor.__deepcopy__ = copied_before  # type: ignore[method-assign]


def _deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    if id(tensor) not in memo:
        with torch.no_grad():
            new: torch.Tensor = tensor.clone()
        parameter = isinstance(tensor, nn.Parameter)
        wanted = tensor.requires_grad
        memo[id(tensor)] = nn.Parameter(new, wanted) if parameter else new.requires_grad_(wanted)
    return memo[id(tensor)]
