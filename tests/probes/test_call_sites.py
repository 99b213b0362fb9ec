"""Which code counts as the place of a call."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
from mgpu_probes.inprocess.frameworks.torch.call_sites import is_users

pytestmark = pytest.mark.slow  # it loads torch

TORCH = find_spec("torch")
assert TORCH is not None
assert TORCH.origin is not None
INSTALLED = os.path.dirname(os.path.dirname(TORCH.origin))


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/u/train.py", True),
        (os.path.join(INSTALLED, "trainer", "loop.py"), True),
        (os.path.join(INSTALLED, "torchvision", "ops.py"), True),
        (os.path.join(INSTALLED, "torch", "nn", "modules", "module.py"), False),
        (os.path.join(INSTALLED, "optree", "ops.py"), False),
    ],
)
def test_what_torch_and_its_helper_do_is_asked_for_by_somebody_else(file: str, users: bool) -> None:
    assert is_users(file) is users
