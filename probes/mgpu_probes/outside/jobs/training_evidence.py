"""Evidence that a process trains: its libraries, its open devices, its threads.

Thread names: c10::setThreadName in PyTorch's sources (2.5 and later)."""

from __future__ import annotations

from mgpu_probes.outside.jobs.command_lines import is_python_command, parse_program, program_name
from mgpu_probes.outside.jobs.process_table import Machine

LOADER_THREAD = "pt_data_worker"
"""What PyTorch calls the main thread of a data-loader worker."""
_STORE_THREAD = "pt_tcpst"
_MET_THREADS = ("pt_gloo", "pt_nccl", "pt_ucc", "pt_mpi")
_GROUP_THREADS = (*_MET_THREADS, _STORE_THREAD, "gloo_tcp_loop", "pt_dist_engine")
_FRAMEWORKS = (
    b"/libtorch_cpu", b"/libtorch_python", b"/libtorch.so", b"/libtensorflow_framework",
    b"/libtensorflow_cc", b"/_pywrap_tensorflow", b"/libjax", b"/xla_extension",
)  # fmt: skip
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render", "/dev/accel", "/dev/vfio/")
_NO_DEVICE = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/nvidia-caps")
"""What any program that asks the driver holds open."""
_SERVERS = (
    "jupyter", "ipykernel", "colab_kernel", "vllm", "sglang", "uvicorn", "gunicorn", "hypercorn",
    "tritonserver", "text-generation", "lmdeploy", "gradio", "streamlit", "tensorboard", "bentoml",
    "ray::serve", "flask", "celery", "pytest",
)  # fmt: skip
"""Programs that load a framework and hold a device, and do not train."""
_NOTEBOOKS = ("ipykernel", "colab_kernel")
BUSY = 0.5
"""Share of its life that a process without a device computed, from which it is taken for a
training: a choice, high enough that a server that waits for requests is none."""
YOUNG = 30.0
"""Seconds of life before that share says anything: imports alone compute for seconds."""


def runs_python(machine: Machine, pid: int) -> bool:
    """Whether it is a Python; of one that calls itself otherwise (setproctitle) the file tells."""
    return is_python_command(machine.command(pid)) or is_python_command((machine.program(pid),))


def has_framework(machine: Machine, pid: int) -> bool | None:
    """Whether it has loaded a training framework; None: may not be read."""
    return machine.has_mapped(pid, _FRAMEWORKS)


def has_device_open(machine: Machine, pid: int) -> bool:
    """Whether it holds an accelerator open."""
    return any(
        path.startswith(_DEVICES) and not path.startswith(_NO_DEVICE)
        for path in machine.open_files(pid)
    )


def is_in_process_group(machine: Machine, pid: int) -> bool:
    """Whether it runs threads of torch.distributed: these do not survive a fork."""
    return any(name.startswith(_GROUP_THREADS) for name in machine.threads(pid))


def has_joined_group(machine: Machine, pid: int) -> bool:
    """Whether its process group is complete: before that these threads are not started (measured
    with PyTorch 2.13 and gloo)."""
    return any(name.startswith(_MET_THREADS) for name in machine.threads(pid))


def hosts_store(machine: Machine, pid: int) -> bool:
    """Whether ranks meet in it: it runs the TCP store, as rank 0 does."""
    return any(name.startswith(_STORE_THREAD) for name in machine.threads(pid))


def is_server(machine: Machine, pid: int) -> bool:
    return any(name.startswith(_SERVERS) for name in _names(machine, pid))


def is_notebook(machine: Machine, pid: int) -> bool:
    """The kernel of a notebook: it may well train, and mostly it waits for somebody to type."""
    return any(name.startswith(_NOTEBOOKS) for name in _names(machine, pid))


def _names(machine: Machine, pid: int) -> tuple[str, str]:
    """Of what is run, and of what that runs."""
    command = machine.command(pid)
    program = parse_program(command)[0]
    return program_name(command[0] if command else "").lower(), program_name(program).lower()


def is_training(machine: Machine, pid: int) -> bool:
    """Whether a process that no launcher started is a training of its own. When in doubt: no."""
    entry = machine.entries[pid]
    if has_framework(machine, pid) is not True:
        return False
    children = machine.children.get(pid, ())
    if any(machine.entries[child].name == LOADER_THREAD for child in children):
        return True
    interactive = is_notebook(machine, pid)
    if is_server(machine, pid) and not interactive:
        return False
    if has_device_open(machine, pid) and not interactive:
        return True
    age = machine.age(entry)
    return age is not None and age >= YOUNG and entry.cpu_seconds >= BUSY * age
