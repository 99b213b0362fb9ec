"""GPUs of one host or of several: an index names one only together with its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mgpu_doctor.case.gpu import Device


class Which(NamedTuple):
    """A GPU, in whatever row it stands. `host`: None: not known. `number`: its index there."""

    host: str | None
    number: int


class Gpu(NamedTuple):
    """A GPU and the host that it is in."""

    host: str | None
    device: Device

    @property
    def which(self) -> Which:
        return Which(self.host, self.device.index)
