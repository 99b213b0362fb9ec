"""Starts a Ray of its own on this machine, trains in its workers, and ends it.

    python -m mgpu_trainers.pytorch.ray_cluster --ranks 2 mgpu_trainers.pytorch.ray_ddp --steps 200

No other user can reach it: it listens on loopback only and requires a token that only
this user can read. What it keeps lies in a temporary folder.
"""

import argparse
import ctypes
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mgpu_trainers import catalogue
from mgpu_trainers.process_lifetime import AskedToEnd, end_with_parent, ignore, raise_when_asked
from mgpu_trainers.pytorch import ray_worker

SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux, too: it listens on loopback alone
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",  # imports, on a busy machine
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # --save-to is as the user means it
}
LOOPBACK = "127.0.0.1"
STORE = 100 * 2**20
"""Bytes of Ray's object store, in which nothing much lies."""
ASKING = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0
"""Seconds in which Ray's workers may end after Ray."""
_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mgpu_trainers.pytorch.ray_cluster")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("module", help="its `learn` trains in each worker")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the module")
    parsed = parser.parse_args(argv)
    trainer = catalogue.find("ray-torch")
    if why := catalogue.missing(trainer):
        parser.exit(2, f"{trainer.name} {why}.\n")
    args = catalogue.arguments(trainer, parsed.options, parsed.ranks)
    try:
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
            _prepare(Path(folder), args.threads)
            return _run_in_child(Job(parsed, args, Path(folder)).run)
    except AskedToEnd as request:
        signal.signal(request.signal, signal.SIG_DFL)
        signal.raise_signal(request.signal)
        return 128 + request.signal


def _prepare(folder: Path, threads: int) -> None:
    """The environment of Ray's processes, before anything of it is imported."""
    token = folder / "token"
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        os.environ.pop(name, None)
    os.environ |= SETTINGS | {"RAY_AUTH_TOKEN_PATH": str(token)}
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))


class Job:
    def __init__(self, parsed: argparse.Namespace, args: argparse.Namespace, folder: Path) -> None:
        self.parsed, self.args, self.folder = parsed, args, folder
        self.code = 1

    def run(self) -> int:
        """The exit code."""
        import ray
        import torch

        gpus = torch.cuda.device_count()
        if self.args.device == "cuda" and gpus < self.parsed.ranks:
            return _complain(f"{gpus} GPUs are too few; try --device cpu")
        on_gpus = self.args.device != "cpu" and gpus >= self.parsed.ranks
        try:
            ray.init(
                address="local",
                num_cpus=self.parsed.ranks,
                object_store_memory=STORE,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=str(self.folder),
            )
            if ray.util.get_node_ip_address() != LOOPBACK:
                return _complain("this version of Ray would listen to the network; 2.60 does not")
            # In a thread, as in the main one Ray Train takes Ctrl-C for itself.
            fitting = threading.Thread(target=self._fit, args=(on_gpus,), daemon=True)
            fitting.start()
            fitting.join()
        finally:
            ray.shutdown()
        return self.code

    def _fit(self, on_gpus: bool) -> None:
        from ray.exceptions import RayError
        from ray.train import RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchConfig, TorchTrainer

        shared = ray_worker.SharedOutput(self.folder / "output")
        options = "\n".join(self.parsed.options)
        settings = {"module": self.parsed.module, "options": options, "output": str(shared.path)}
        timeout = {"timeout_s": int(self.args.timeout)} if self.args.timeout else {}
        trainer = TorchTrainer(
            ray_worker.train_in_worker,
            train_loop_config=settings,
            torch_config=TorchConfig(**timeout),
            scaling_config=ScalingConfig(num_workers=self.parsed.ranks, use_gpu=on_gpus),
            run_config=RunConfig(storage_path=str(self.folder / "kept")),
        )
        try:
            trainer.fit()
            self.code = 0
        except (TrainingFailedError, RayError) as error:
            self.code = _report_failure(error)


def _run_in_child(run: Callable[[], int]) -> int:
    """Runs it in a child, as Ray may end the process that it is ended in; the child's exit code.

    Raises AskedToEnd once nothing is left of the child and of what it started.
    """
    _adopt_orphans()
    raise_when_asked(*ASKING)
    child = os.fork()
    if not child:
        ignore(*ASKING)  # the parent ends us
        end_with_parent()
        code = 1
        try:
            code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    patience = 0.0
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        patience = PATIENCE
        return code if code >= 0 else 128 - code
    finally:
        ignore(*ASKING)
        _end_children(patience)


def _adopt_orphans() -> None:
    """Makes orphans our children: Ray's workers outlive the processes that started them."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_SET_CHILD_SUBREAPER, 1)


def _end_children(patience: float) -> None:
    """Waits until no child is left; kills those that remain after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            if time.monotonic() > deadline:
                for child in _children():
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.02)


def _children() -> list[int]:
    """Read from /proc/PID/stat (proc(5)), where there is one."""
    pids = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = file.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                pids.append(int(file.parent.name))
    return pids


def _report_failure(error: Any) -> int:
    """Reports failed ranks, one line each; the exit code one of them asked for, or 1."""
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return _complain(str(error).strip().splitlines()[-1])
    code = 1
    for rank, failure in sorted(failures.items()):
        inner = getattr(failure, "_base_exc", failure)
        if isinstance(inner, SystemExit) and isinstance(inner.code, int):
            code = inner.code or 1
        first = (str(inner).strip().splitlines() or [""])[0]
        _complain(f"rank {rank} failed: {type(inner).__name__}: {first[:300]}")
    return code


def _complain(why: str) -> int:
    print(f"ray-torch: {why}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
