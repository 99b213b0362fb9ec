"""The checks: each starts real jobs in an environment and judges what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from mgpu_trainers import catalogue
from mgpu_trainers.capabilities import Framework as Trains
from mgpu_trainers.capabilities import Launcher

from mgpu_doctor.errors import NOTHING_EXAMINED
from tests.matrix.environments import Framework, read_versions
from tests.matrix.sites import LONGEST, Check, Site, hanging, parse
from tests.matrix.verdicts import (
    WORKS,
    Observation,
    Outcome,
    Verdict,
    fails,
    find_refusal,
    judge_crash,
    judge_culprit,
    judge_finding,
    judge_hang,
    judge_healthy,
    judge_reported,
    judge_trainer,
    last_error,
)
from tests.support.jobs import JOBS, run, started
from tests.zoo.catalogue import CATALOGUE
from tests.zoo.ways import run_crash, run_hung, start_hanging

STEPS = 40
SLOW_STEPS = 120
"""Twelve seconds: on a busy machine a shorter job may end before anyone has measured whether its
slow rank only waited for a core, and is then reported with that doubt."""
TRAINER_STEPS = 12
SLOW_MS = "100"
"""So long that what a busy machine adds to a rank is small beside it."""
PLACES = {
    "input": "straggler-input",
    "forward": "straggler-compute",
    "backward": "straggler-compute",
    "optimizer": "straggler-optimizer",
    "between": "straggler-other",
}
"""Where `tests/jobs/_slow.py` can be slow, and the finding that names it."""
HANG = JOBS / "hangs.py"
(WORKERS,) = (script for script in CATALOGUE if script.name == "workers_custom_loop")
"""Workers of TensorFlow that hang and crash in their data pipelines."""
PROFILER = "tf.profiler.experimental"


def checks_of(framework: Framework) -> tuple[Check, ...]:
    """All checks of an environment for this framework."""
    return TORCH if framework is Framework.TORCH else TENSORFLOW


def check_healthy(site: Site) -> Verdict:
    job = site.torchrun("plain_ddp.py", "--steps", str(STEPS))
    return judge_healthy(site.observe(["run"], ["--", *job]), STEPS)


def check_slow(site: Site, place: str) -> Verdict:
    fault = ("--fault", place, "--rank", "1", "--ms", SLOW_MS)
    job = site.plain("plain_ddp.py", "--steps", str(SLOW_STEPS), *fault)
    return judge_culprit(site.observe(["run"], ["--", *job]), PLACES[place], 1)


def check_buffers(site: Site) -> Verdict:
    """Who waits for a late rank in the forward pass, where batch norm is synchronised, is not
    slow."""
    options = ["--model", "cnn-nano", "--device", "cpu", "--steps", str(SLOW_STEPS)]
    fault = ["--fault", f"slow:rank=1,phase=input,ms={SLOW_MS}"]
    seen = site.observe(["train", "torch-ddp"], [*options, *fault])
    return judge_culprit(seen, "straggler-input", 1)


def check_compiler(site: Site) -> Verdict:
    """Code that is compiled again and again, by torch.compile without a compiler of C++."""
    job = site.plain("recompiles.py", "--steps", "60", "--every", "6")
    return judge_reported(site.observe(["run"], ["--", *job]), "recompiling")


def check_crash(site: Site) -> Verdict:
    job = site.torchrun("failing_training.py", "raise", "--rank", "1")
    return judge_crash(site.observe(["run"], ["--", *job]), "failed-exception", 1)


def check_hang(site: Site) -> Verdict:
    """A job that nothing was prepared for."""
    place = f"{HANG.name}:{_line_of('with lock, lock:')}"
    with _hanging(site, [], "lock") as pid:
        ended = site.ask("diagnose", str(pid), "--json")
    return judge_hang(parse(ended.out), ended.err, "hang-rank-behind", place=place)


def check_recorder(site: Site) -> Verdict:
    """Ranks in different collectives, whose flight recorders can be asked."""
    observer = site.doctor("run", "--quiet", "--dir", str(site.new_path("recording")), "--")
    with _hanging(site, observer, "other-op") as pid:
        ended = site.ask("diagnose", str(pid), "--json")
    diagnosis, code = parse(ended.out), "hang-collective-mismatch"
    return judge_hang(diagnosis, ended.err, code, asks="flight recorder")


@contextmanager
def _hanging(site: Site, observer: Sequence[str], how: str) -> Iterator[int]:
    """The process id of the rank that hangs: rank 1 of three."""
    mark = site.new_path("mark")
    job = site.plain(HANG.name, how, "--rank", "1", "--mark", str(mark), ranks=3)
    with hanging([*observer, *job] if observer else site.command(*job[1:]), mark):
        yield int(mark.read_text())


def check_trace(site: Site) -> Verdict:
    """A trace of a running job names its slow rank."""
    recording, folder = site.new_path("recording"), site.new_path("traces")
    options = ["--quiet", "--dir", str(recording), "--model", "cnn-nano", "--device", "cpu"]
    fault = ["--steps", "2000", "--log-every", "10", "--fault", "slow:rank=1,phase=forward,ms=100"]
    with started(site.doctor("train", "torch-ddp", *options, *fault)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 20 "):
                break
        else:
            return fails("the job ended before it could be traced")
        ended = site.ask("trace", str(recording), "--steps", "10", "-o", str(folder), "--json")
    diagnosis = parse(ended.out)
    if ended.code or diagnosis is None:
        return fails(f"exit code {ended.code}: {last_error(ended.err)}")
    if len(list(folder.iterdir())) != 2:
        return fails("not every rank left a trace")
    return judge_finding(diagnosis, "straggler-compute", 1)


def check_plan(site: Site, *words: str) -> Verdict:
    ended = run(site.doctor("plan", *words, "--json"), LONGEST)
    planned = parse(ended.out)
    if ended.code or planned is None:
        return fails(f"exit code {ended.code}: {last_error(ended.err)}")
    return WORKS if planned["prediction"] else fails("; ".join(planned["reasons"]))


def check_trainer(site: Site, name: str, *options: str) -> Verdict:
    trainer = catalogue.find(name)
    needs_ray = trainer.launcher is Launcher.RAY
    ray = read_versions(Path(site.python), ["ray"]).get("ray") if needs_ray else None
    if needs_ray and ray is None:
        return Verdict(Outcome.NOT_RUN, "Ray is not installed")
    given = ["--steps", str(TRAINER_STEPS), *options]
    if "--device" in {f"--{option.name}" for option in trainer.options}:
        given += ["--device", "cpu"]
    seen = site.observe(["train", name], given)
    served = trainer.has_server_rank or trainer.name == "tf-ps"
    verdict = judge_trainer(seen, TRAINER_STEPS, all_train=not served)
    return replace(verdict, detail=f"Ray {ray}") if ray and verdict == WORKS else verdict


def check_keras(site: Site) -> Verdict:
    job = [site.python, str(JOBS / "keras_fit.py"), "--steps", str(STEPS), "--batch", "128"]
    return judge_healthy(site.observe(["run"], ["--", *job]), STEPS)


def check_fitting_workers(site: Site) -> Verdict:
    if site.variables.get("TF_USE_LEGACY_KERAS") != "1":
        cannot = "Keras 3 cannot `fit` under MultiWorkerMirroredStrategy (keras issue 20585)"
        return Verdict(Outcome.NOT_RUN, cannot)
    return judge_healthy(check_workers(site, "keras_fit.py", "--steps", str(STEPS)), STEPS)


def check_healthy_workers(site: Site) -> Verdict:
    return judge_healthy(check_workers(site, "tf_loop.py", "--steps", str(STEPS)), STEPS)


def check_workers(site: Site, script: str, *options: str) -> Observation:
    launcher = [site.python, str(JOBS / "tf_workers.py"), "--workers", "2", script]
    return site.observe(["run"], ["--", *launcher, *options])


def check_slow_worker(site: Site) -> Verdict:
    fault = ("--steps", str(SLOW_STEPS), "--fault", "forward", "--rank", "1", "--ms", SLOW_MS)
    return judge_culprit(check_workers(site, "tf_loop.py", *fault), "straggler-compute", 1)


def check_slow_data(site: Site) -> Verdict:
    fault = ("--plain", "--fault", "input", "--rank", "0", "--ms", "30")
    job = [site.python, str(JOBS / "tf_loop.py"), "--steps", str(STEPS), *fault]
    return judge_reported(site.observe(["run"], ["--", *job]), "input-bound")


def check_workers_trace(site: Site) -> Verdict:
    """Nothing outside a TensorFlow job can trace it: a sentence says what can."""
    with start_hanging(WORKERS, site) as pid:
        ended = site.ask("trace", str(pid))
    refusal = find_refusal(ended, NOTHING_EXAMINED, PROFILER)
    return refusal or fails(f"exit code {ended.code}: {last_error(ended.err)}")


def check_profile(site: Site) -> Verdict:
    """What TensorFlow's own profiler wrote, as `trace` says."""
    folder = site.new_path("profile")
    fault = ("--fault", "input", "--rank", "0", "--ms", "30")
    job = (str(JOBS / "keras_fit.py"), "--steps", str(STEPS), "--profile", str(folder), *fault)
    ended = run(site.command(*job), LONGEST)
    diagnosis = parse(site.ask("diagnose", str(folder), "--json").out)
    return judge_reported(Observation(ended, diagnosis), "input-bound")


def _line_of(words: str) -> int:
    """The number of the only line of the script that holds these words."""
    lines = HANG.read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, text in enumerate(lines, 1) if words in text)
    return number


def _trainers(framework: Trains) -> Iterator[Check]:
    """Each built-in trainer with a small model; where it has none, its default."""
    for trainer in catalogue.TRAINERS:
        if trainer.framework is not framework or trainer.name == "tf-tpu":
            continue
        small = () if trainer.name in ("torch-tp", "torch-tp-fsdp") else ("--model", "cnn-nano")
        yield Check(f"`train {trainer.name}`", partial(_train, name=trainer.name, options=small))


def _train(site: Site, *, name: str, options: Sequence[str]) -> Verdict:
    return check_trainer(site, name, *options)


TORCH = (
    Check("healthy job", check_healthy),
    *(Check(f"slow rank: {place}", partial(check_slow, place=place)) for place in PLACES),
    Check("slow rank: input, batch norm", check_buffers),
    Check("recompilations", check_compiler),
    Check("hang, attached", check_hang),
    Check("crash", check_crash),
    Check("flight recorder", check_recorder),
    Check("`trace`", check_trace),
    Check("`plan`", lambda site: check_plan(site, "torch-ddp", "--model", "cnn-nano")),
    *_trainers(Trains.TORCH),
    Check(
        "`--checkpointing selective`",
        lambda site: check_trainer(site, "torch-single", "--checkpointing", "selective"),
    ),
    Check("`--schedule zbv`", lambda site: check_trainer(site, "torch-pp", "--schedule", "zbv")),
)
TENSORFLOW = (
    Check("healthy `fit`", check_keras),
    Check("healthy workers", check_healthy_workers),
    Check("healthy `fit` on workers", check_fitting_workers),
    Check("slow worker: forward", check_slow_worker),
    Check("slow data set", check_slow_data),
    Check("hang, attached", partial(run_hung, WORKERS)),
    Check("crash", partial(run_crash, WORKERS)),
    Check("`trace`", check_workers_trace),
    Check(f"`{PROFILER}`", check_profile),
    Check("`plan`", lambda site: check_plan(site, "tf-single", "--model", "cnn-nano")),
    *_trainers(Trains.TENSORFLOW),
)
