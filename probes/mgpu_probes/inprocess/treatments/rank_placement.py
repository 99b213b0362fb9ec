"""Treatments of what a rank may use on its host: its cores, and threads of torch and gloo."""

from __future__ import annotations

import functools
import glob
import os
from typing import TYPE_CHECKING, Any

from .call_arguments import ALREADY_SET, edit_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply, Arguments
    from .treatment_adapter import Change

NO_LOCAL_RANK, TOO_FEW_CORES, NO_GPU, ONE_NODE = "no-local-rank", "too-few-cores", "no-gpu", "near"
_GPUS, _DEVICES = "/proc/driver/nvidia/gpus", "/sys/bus/pci/devices"


def _bind(choose: Callable[[set[int]], set[int] | str]) -> Apply:
    """Lets the rank run only on some of the cores that it may use, before it joins the others. All
    its threads move, and those that it starts later. `choose`: the cores, or why there are none."""

    def apply(change: Change, _: ProbeContext, groups: ModuleType) -> None:
        def edit(_: Arguments) -> str | None:
            if change.changed:
                return ALREADY_SET
            cores = choose(os.sched_getaffinity(0))
            if isinstance(cores, str):
                return cores
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), cores)
            return None

        edit_call(groups, "init_process_group", change, edit)

    return apply


def _choose_own(allowed: set[int]) -> set[int] | str:
    """The rank's share of the cores, in order."""
    try:
        rank, ranks = (int(os.environ[f"LOCAL_{name}"]) for name in ("RANK", "WORLD_SIZE"))
    except (KeyError, ValueError):
        return NO_LOCAL_RANK
    cores = sorted(allowed)
    return (
        set(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]) or TOO_FEW_CORES
    )


def choose_near_gpu(
    allowed: Iterable[int], gpus: str = _GPUS, devices: str = _DEVICES
) -> set[int] | str:
    """The allowed cores near the rank's GPU, which is the one with its local rank among the visible
    ones. The driver's `gpus` are in the order of their addresses, which is CUDA's for equal GPUs.
    """
    addresses = sorted(map(os.path.basename, glob.glob(f"{gpus}/*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        place = int(os.environ["LOCAL_RANK"])
        address = addresses[place if visible is None else int(visible.split(",")[place])]
        with open(f"{devices}/{address.lower()}/local_cpulist", encoding="ascii") as file:
            near = read_cores(file.read())
    except KeyError:
        return NO_LOCAL_RANK
    except (ValueError, IndexError, OSError):  # GPUs named by UUID too
        return NO_GPU
    cores = near.intersection(allowed)
    if not cores:
        return TOO_FEW_CORES
    return ONE_NODE if cores == set(allowed) else cores


def read_cores(text: str) -> set[int]:
    """The numbers of a list such as `0-3,8`. Raises ValueError."""
    ends = (part.partition("-") for part in text.strip().split(","))
    return {core for first, _, last in ends for core in range(int(first), int(last or first) + 1)}


def _limit_operations(change: Change, _: ProbeContext, torch: ModuleType) -> None:
    """Limits the operations that run at once. Only possible before the first of them."""
    if torch.get_num_interop_threads() == change.value:
        change.refuse(ALREADY_SET)
        return
    torch.set_num_interop_threads(change.value)
    change.note()


def _use_gloo_threads(change: Change, _: ProbeContext, groups: ModuleType) -> None:
    """Sets the number of gloo's threads for exchanges, where torch chooses it."""
    gloo = groups.ProcessGroupGloo
    original = gloo.__init__

    @functools.wraps(original)
    def initialize(this: Any, *args: Any, timeout: Any = None, **kwargs: Any) -> None:
        options: list[Any] = []

        def choose_threads() -> None:
            options.append(_make_gloo_options(gloo, timeout, change.value))

        chooses = not kwargs and len(args) == 3 and timeout is not None
        if chooses and change.attempt(choose_threads):
            change.note()
        elif timeout is not None:
            kwargs["timeout"] = timeout
        original(this, *args, *options, **kwargs)

    gloo.__init__ = initialize


def _make_gloo_options(gloo: Any, timeout: Any, threads: int) -> Any:
    names = os.environ.get("GLOO_SOCKET_IFNAME")
    options = gloo._Options()
    options._timeout, options._threads = timeout, threads
    options._devices = (
        [gloo.create_device(interface=name) for name in names.split(",")]
        if names
        else [gloo.create_default_device()]
    )
    return options


_GROUPS = "torch.distributed.distributed_c10d"
APPLICATIONS: dict[str, dict[str, Apply]] = {
    "rank-cores": {_GROUPS: _bind(_choose_own)},
    "gpu-cores": {_GROUPS: _bind(choose_near_gpu)},
    "interop-threads": {"torch": _limit_operations},
    "gloo-threads": {_GROUPS: _use_gloo_threads},
}
"""For each treatment, the modules that it changes, and the function that changes each."""
