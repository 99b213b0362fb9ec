"""Profiles of property tests, which tests run when, and what is made once for all tests.

Property tests try the same few examples in the quick run, the same many with
`--hypothesis-profile=thorough` (`make test-slow`), and new ones with `--hypothesis-profile=search`.
"""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support.forked_processes import run_in_processes
from tests.support.jobs import IN_PARALLEL, PROCESSES
from tests.support.nvml import Libraries, PretendNvml

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Else each of the hundreds of processes that tests start would compile the doctor anew."""

for inside in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "RAY_JOB_ID"):
    os.environ.pop(inside, None)
"""Else `diagnose` would propose to examine the whole job that the tests are a part of."""

for ignored in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)
"""A shell's background jobs ignore them: so would all that tests start."""

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure of a test."""
settings.register_profile("quick", UNTIMED, derandomize=True, max_examples=10)
settings.register_profile("thorough", UNTIMED, derandomize=True, max_examples=200)
settings.register_profile("search", UNTIMED, derandomize=False, max_examples=200)
settings.load_profile("quick")

COMPILER = Path(__file__).parents[1] / ".ci" / "compiler"
END_TO_END = Path(__file__).parent / "e2e"
ON_DEVICES = Path(__file__).parent / "gpu"
"""The fixture `device` marks its tests as slow."""
SHARED_JOBS = {"watch", "watched_jobs", "jobs_of_loops", "passes", "one_of_two", "box", "adam"}
"""Fixtures that run a job, or trace a step, once for several tests."""
SLOW_AS_A_WHOLE = ("\npytestmark = pytest.mark.slow", "\npytestmark = [pytest.mark.slow")
SLOW_IN_PART = ("pytest.mark.slow", "few_or_sweep")
SLOW_TO_LOAD = ("torch", "tensorflow", "pyarrow")
"""Packages that every process would load in seconds, if a file of quick tests imported them."""
WAITING = (
    "test_host_channels.py",
    "test_host_ranks.py",
    "test_top_keys.py",
    "test_starting.py",
    "test_devices_trouble.py",
    "test_gpu_watch.py",
    "test_hardware_scenarios.py",
    "test_jobs_properties.py",
    "test_collective_timing.py",
    "test_run_signals.py",
    "test_top_verb.py",
    "test_hang_watchdog.py",
    "test_ondemand_asked.py",
    "test_attach.py",
    "test_filter_prompt.py",
    "test_diagnosis_screen.py",
    "test_history_keys.py",
    "test_launch_screen.py",
)
"""Files of few tests that take long, mostly because they wait; the longest first."""
UNTIL = "--until"
"""The option by which CI, which ends after a fixed time, still ends in order on a slow machine."""
LOADED = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        PROCESSES, type=int, default=1, metavar="N", help="run the tests of files in N processes"
    )
    parser.addoption(
        UNTIL,
        type=float,
        metavar="SECONDS",
        help="skip what has not begun by then, since the epoch; begin with another file each day",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick run does not import files whose tests are all slow: many load a framework. The slow
    runs do not import files without a slow test, or without a property test, which are most."""
    chosen = config.getoption("markexpr")
    if collection_path.suffix != ".py":
        return None
    if chosen.startswith("slow and"):
        return not may_have_slow_tests(collection_path) or None
    text = collection_path.read_text(encoding="utf-8")
    if chosen.startswith("hypothesis and") and "hypothesis" not in text:
        return True
    return ("not slow" in chosen and any(mark in text for mark in SLOW_AS_A_WHOLE)) or None


def may_have_slow_tests(path: Path) -> bool:
    """Whether a test file marks tests as slow, or runs on the devices of tests/gpu."""
    text = path.read_text(encoding="utf-8")
    return ON_DEVICES in path.parents or any(mark in text for mark in SLOW_IN_PART)


def check_that_no_test_is_left_out(items: list[pytest.Item]) -> None:
    """The files of slow tests and of property tests say what they are."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    properties = {item.path for item in items if hasattr(getattr(item, "obj", None), "hypothesis")}
    hidden = {path for path in slow if not may_have_slow_tests(path)}
    hidden |= {path for path in properties if "hypothesis" not in path.read_text(encoding="utf-8")}
    if hidden:
        raise pytest.UsageError(f"`make test-slow` would leave out tests of {hidden}")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only end-to-end tests and those of devices judge the speed of a job: others hold on a busy
    machine, too. The order is the same in all processes."""
    check_that_no_test_is_left_out(items)
    until = items[0].config.getoption(UNTIL) if items else None
    if until is not None:
        rotate(items, until)
    if IN_PARALLEL:
        places = {file: place for place, file in enumerate(order_files(items))}
        items.sort(key=lambda item: places[item.path])
    for item in items:
        if not is_end_to_end(item.path) and ON_DEVICES not in item.path.parents:
            item.add_marker(pytest.mark.untimed)


def rotate(items: list[pytest.Item], until: float) -> None:
    """Begins with another file each day, so that it is not always the same tests that CI has no
    time for."""
    files = list(dict.fromkeys(item.path for item in items))
    first = int(until // 86400) % len(files)
    places = {file: place for place, file in enumerate([*files[first:], *files[:first]])}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    until: float | None = item.config.getoption(UNTIL)
    if until is not None and time.time() > until:
        pytest.skip("not reached: the time that CI has is over")


def order_files(items: list[pytest.Item]) -> Iterator[Path]:
    """Jobs and then files of many tests first, so that all processes end at about the same time,
    and one that waits before every second of them, so that the others have the cores meanwhile."""
    counts = Counter(item.path for item in items)
    by_count = sorted(counts, key=lambda file: (not is_end_to_end(file), -counts[file], str(file)))
    waiting = [file for file in by_count if file.name in WAITING]
    waiting.sort(key=lambda file: WAITING.index(file.name), reverse=True)
    for place, file in enumerate(file for file in by_count if file.name not in WAITING):
        if place % 2 == 0 and waiting:
            yield waiting.pop()
        yield file
    yield from reversed(waiting)


@cache
def is_end_to_end(file: Path) -> bool:
    return END_TO_END in file.parents


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count: int = session.config.getoption(PROCESSES)
    if count == 1 or session.testsfailed or session.config.option.collectonly:
        return None
    from mgpu_doctor.case.log_case import signs_of

    signs_of({"a log": ("",)})  # compiles the patterns of all messages, once for all processes
    run_in_processes(session, count)
    return True


@cache
def find_group(file: Path) -> str | None:
    """The group of a file's tests, which run in one process because they share jobs."""
    text = file.read_text(encoding="utf-8")
    named = re.search(r'xdist_group\("(\w+)"\)', text)
    if named is not None:
        return named[1]
    return file.name if re.search(rf"\b({'|'.join(SHARED_JOBS)}): ", text) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler that keeps groups together, of `--dist loadgroup`. That of xdist 3.8 does not
    with pytest 9.2: it looks for the group in the id of a test, which pytest makes anew."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return find_group(config.rootpath / nodeid.partition("::")[0]) or nodeid

    return Scheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """The quick run's examples are made without the constants of the modules that are loaded:
    reading them takes each process a second, and the examples would differ with what other tests
    have loaded."""
    if not config.getoption("hypothesis_profile", None):
        vars(providers)["_get_local_constants"] = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the garbage collector: what is made here stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now stays to the end: the garbage collector need not go through it, nor
    through what screens make, again and again. This saves a sixth of the processor time."""
    session.config.stash[LOADED] = [name for name in SLOW_TO_LOAD if name in sys.modules]
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def loaded_by_collection(pytestconfig: pytest.Config) -> list[str]:
    """Which packages of `SLOW_TO_LOAD` the files of the tests imported."""
    return pytestconfig.stash[LOADED]


def folder_of_all_processes(factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that the processes of the tests share."""
    own = factory.getbasetemp()
    return own.parent if IN_PARALLEL else own


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Libraries]:
    """The pretend NVML library in all its kinds."""
    built = Libraries(folder_of_all_processes(tmp_path_factory) / "pretend-nvml")
    yield built
    built.close()


@pytest.fixture(scope="session")
def nvml(libraries: Libraries) -> PretendNvml:
    """That of a driver of today."""
    return libraries.kind()


@pytest.fixture(scope="session")
def pretend_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the pretend GPU has been compiled, once for all processes of the tests.
    Outside of the lock of training jobs: a compiler disturbs no test that judges speed for long."""
    compiler = subprocess.run([COMPILER], capture_output=True, text=True, check=False)
    if compiler.returncode != 0:
        pytest.skip(compiler.stderr.strip())
    folder = folder_of_all_processes(tmp_path_factory) / "pretend-gpu"
    command = [sys.executable, "-m", "tests.support.pretend_accelerator", str(folder)]
    # The same for jobs: ninja compiles anew for a compiler of another name.
    os.environ["CXX"] = compiler.stdout.strip()
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return folder
