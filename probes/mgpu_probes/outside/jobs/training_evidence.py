"""Evidence that a process trains: its libraries, its open devices, its threads.

Thread names: c10::setThreadName in PyTorch's sources (2.5 and later)."""

from __future__ import annotations

from mgpu_probes.outside.jobs.command_lines import is_python_command, parse_program, program_name
from mgpu_probes.outside.jobs.process_table import Machine

LOADER_THREAD = "pt_data_worker"
"""PyTorch's name of the main thread of a data-loader worker."""
_STORE_THREAD = "pt_tcpst"
_JOINED_THREADS = ("pt_gloo", "pt_nccl", "pt_ucc", "pt_mpi")
_GROUP_THREADS = (*_JOINED_THREADS, _STORE_THREAD, "gloo_tcp_loop", "pt_dist_engine")
_FRAMEWORKS = (
    b"/libtorch_cpu", b"/libtorch_python", b"/libtorch.so", b"/libtensorflow_framework",
    b"/libtensorflow_cc", b"/_pywrap_tensorflow", b"/libjax", b"/xla_extension",
)  # fmt: skip
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render", "/dev/accel", "/dev/vfio/")
_NO_DEVICE = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/nvidia-caps")
"""Files that every program that queries the driver has open."""
_SERVERS = (
    "jupyter", "ipykernel", "colab_kernel", "vllm", "sglang", "uvicorn", "gunicorn", "hypercorn",
    "tritonserver", "text-generation", "lmdeploy", "gradio", "streamlit", "tensorboard", "bentoml",
    "ray::serve", "flask", "celery", "pytest",
)  # fmt: skip
"""Programs that load a framework and hold a device, and do not train."""
_NOTEBOOKS = ("ipykernel", "colab_kernel")
BUSY = 0.5
"""Share of CPU time in the lifetime of a process without a device from which it counts as a
training: a choice, high enough to exclude servers that wait for requests."""
YOUNG = 30.0
"""Seconds of lifetime before that share is meaningful: imports alone take seconds."""


def runs_python(machine: Machine, pid: int) -> bool:
    """Whether it is a Python interpreter, by its command line or (setproctitle) its executable."""
    return is_python_command(machine.command(pid)) or is_python_command((machine.program(pid),))


def has_framework(machine: Machine, pid: int) -> bool | None:
    """Whether it has loaded a training framework; None: not readable."""
    return machine.has_mapped(pid, _FRAMEWORKS)


def has_device_open(machine: Machine, pid: int) -> bool:
    """Whether it has an accelerator open."""
    return any(
        path.startswith(_DEVICES) and not path.startswith(_NO_DEVICE)
        for path in machine.open_files(pid)
    )


def is_in_process_group(machine: Machine, pid: int) -> bool:
    """Whether it runs threads of torch.distributed, which a fork does not copy."""
    return any(name.startswith(_GROUP_THREADS) for name in machine.threads(pid))


def has_joined_group(machine: Machine, pid: int) -> bool:
    """Whether its process group is complete: these threads start only then (measured with PyTorch
    2.13 and gloo)."""
    return any(name.startswith(_JOINED_THREADS) for name in machine.threads(pid))


def hosts_store(machine: Machine, pid: int) -> bool:
    """Whether it hosts the TCP store of the rendezvous, as rank 0 does."""
    return any(name.startswith(_STORE_THREAD) for name in machine.threads(pid))


def has_no_peer(machine: Machine, pid: int) -> bool:
    """Whether it is certainly in no process group of several ranks: it has neither threads of
    torch.distributed, which have names only since PyTorch 2.5, nor a TCP socket."""
    files = machine.open_files(pid)
    if not files or is_in_process_group(machine, pid):
        return False
    if not any(file.startswith("socket:") for file in files):
        return True
    sockets = machine.tcp_sockets(pid)
    return sockets is not None and sockets.isdisjoint(files)


def is_server(machine: Machine, pid: int) -> bool:
    """Whether it is a program that loads a framework, holds a device and does not train."""
    return any(name.startswith(_SERVERS) for name in _program_names(machine, pid))


def is_notebook(machine: Machine, pid: int) -> bool:
    """Whether it is the kernel of a notebook, which may train and mostly waits for input."""
    return any(name.startswith(_NOTEBOOKS) for name in _program_names(machine, pid))


def _program_names(machine: Machine, pid: int) -> tuple[str, str]:
    """The lower-case names of the executable and of the program that it interprets."""
    command = machine.command(pid)
    program = parse_program(command)[0]
    return program_name(command[0] if command else "").lower(), program_name(program).lower()


def is_training(machine: Machine, pid: int) -> bool:
    """Whether a process without a launcher trains. False when in doubt."""
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
