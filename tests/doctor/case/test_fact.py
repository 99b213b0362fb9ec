"""Facts are compared, hashed and printed by value, like frozen dataclasses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, make_dataclass, replace

import pytest

from mgpu_doctor.case.device_samples import Pcie, Topology, XidEvent

XID = XidEvent(1.5, 3, 79)


def test_by_value() -> None:
    assert replace(XID) == XID
    assert replace(XID, number=13) != XID
    assert len({XID, replace(XID), replace(XID, number=13)}) == 2


def test_another_kind_is_never_equal() -> None:
    assert Pcie(1) != Topology(levels=(), peer=())
    assert Pcie(1) != (1, None, None, None, None, None, None)
    assert Pcie(1) != make_dataclass("Pcie", ["generation"])(1)


def test_reported_as_a_dataclass_is() -> None:
    like = make_dataclass("Topology", ["levels", "peer"])
    assert repr(Topology((("SELF",),), ())) == repr(like((("SELF",),), ()))


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        XID.number = 13  # type: ignore[misc]
