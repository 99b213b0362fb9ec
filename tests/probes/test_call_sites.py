"""Which code counts as the place of a call."""

from __future__ import annotations

import os

import pytest
import torch
from mgpu_probes.inprocess.torch_hooks.call_sites import is_users

INSTALLED = os.path.dirname(os.path.dirname(torch.__file__))


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
