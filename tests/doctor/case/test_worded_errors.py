"""Errors that match no known message: their words decide, at a low confidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mgpu_doctor.case.error_lines import LAST_LINES
from mgpu_doctor.case.last_exceptions import RAISED
from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from mgpu_doctor.rules.catalogue import OWN
from mgpu_doctor.signatures.error_endings import ENDINGS
from mgpu_doctor.signatures.error_topics import HARD, TOPICS
from mgpu_doctor.signatures.signature import Signature
from tests.support.all_signatures import ALL_SIGNATURES, codes_of
from tests.support.log_texts import first_code
from tests.support.loops import over

STEPS = [f"epoch 1 step {n} loss 0.5" for n in range(30)]
FRAME = ['  File "/home/user/train.py", line 41, in <module>', "    batch = next(batches)"]
HEADER = "Traceback (most recent call last):"
ERROR = "PoolError: unable to allocate 3 GiB for the buffer"

every_topic = over("topic", TOPICS, lambda topic: topic.id)


def findings_of(lines: list[str], folder: Path) -> tuple[Finding, ...]:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return diagnose(load_logs([str(path)])).findings


@every_topic
def test_the_words_of_an_unknown_error_decide(topic: Signature, tmp_path: Path) -> None:
    assert codes_of(topic.example) == []
    finding, *_ = findings_of([f"[ERROR] {topic.example}"], tmp_path)
    assert finding.code == topic.code
    assert finding.confidence <= topic.weight


@every_topic
def test_only_some_words_decide_what_an_exception_is_about(
    topic: Signature, tmp_path: Path
) -> None:
    if (raised := RAISED.match(topic.example)) is None:
        return
    said = [*STEPS, HEADER, *FRAME, f"ValueError: {raised['message']}"]
    finding, *_ = findings_of(said, tmp_path)
    assert finding.code == (topic.code if topic.id in HARD else "failed-exception")


def test_words_find_the_code_of_most_known_messages() -> None:
    """How unknown messages of the same kinds fare: each known one is read as if it were unknown."""
    patterns = [(topic.code, re.compile(topic.pattern)) for topic in TOPICS]
    specific = [
        signature
        for signature in ALL_SIGNATURES
        if signature.severity == "critical" and signature.code != "failed-exception"
    ]
    guesses = [
        (signature.code, next((code for code, words in patterns if words.search(text)), None))
        for signature in specific
        for text in [signature.example]
    ]
    guessed = [pair for pair in guesses if pair[1] is not None]
    right = sum(code == guess for code, guess in guessed)
    assert len(guessed) > 0.75 * len(guesses)
    assert right > 0.85 * len(guessed)


@every_topic
@pytest.mark.timeout(60)
def test_no_line_keeps_a_topic_busy(topic: Signature) -> None:
    words = re.findall(r"[a-zA-Z]{3,}", topic.example)
    for line in (topic.example * 40, " ".join(words * 200), topic.example + " a" * 400):
        re.search(topic.pattern, line[:500])


def test_topics_are_declared_like_signatures() -> None:
    codes = {rule.code for rule in OWN}
    for topic in (*TOPICS, *ENDINGS):
        assert topic.code in codes
        assert 0 < topic.weight <= 0.5
        assert topic.id not in {signature.id for signature in ALL_SIGNATURES}


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["F0102 03:04:05.6 47 pool.cc:7] Check failed: a == b "], "failed-signal"),
        ([*STEPS, "F0102 03:04:05.6 47 rpc.cc:7] connection to 10.0.0.3 failed"], "failed-signal"),
        ([*STEPS, "rpc client: connection to 10.0.0.3 failed"], "failed-exception"),
        (["rpc client: connection to 10.0.0.3 failed"], "failed-rendezvous"),
        ([HEADER, *FRAME], "failed-exception"),
        (["train.py FAILED"], "failed-exception"),
        (["╭──── Traceback (most recent call last) ────╮", "│ train.py:7 in main │"], "failed-exc"),
        ([f"stderr: {line}" for line in (HEADER, *FRAME, ERROR)], "oom-host"),
        (["[E rccl.cpp:7] the sentinel caught an RCCL timeout"], "failed-nccl-timeout"),
        (["INFO:train:step 7 of this run has a loss of 0.5, and goes on", ERROR], "oom-host"),
        ([ERROR.replace("allocate", "allocate, at iteration x,")], "oom-host"),
        ([*STEPS, "step 31 loss=nan"], "loss-nan"),
        ([HEADER, *FRAME, "KeyError: 'the checkpoint'"], "failed-exception"),
        ([HEADER, *FRAME, ERROR, "rpc client: connection to 10.0.0.3 failed"], "oom-host"),
        ([ERROR, "RuntimeError: CUDA error: device-side assert triggered"], "failed-device-assert"),
        (
            [*STEPS, "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Runner.run()"],
            "oom-device",
        ),
    ],
    ids=[
        "fatal line",
        "fatal line about a connection",
        "lost connection",
        "no connection",
        "cut traceback",
        "launcher",
        "cut frame",
        "Accelerate",
        "caught",
        "after a short line",
        "a word of progress",
        "last loss",
        "mistake of the script",
        "cause before consequence",
        "known message",
        "type in parentheses",
    ],
)
def test_what_an_unknown_failure_is(lines: list[str], code: str, tmp_path: Path) -> None:
    finding, *_ = findings_of(lines, tmp_path)
    assert code in finding.code


@pytest.mark.parametrize(
    "lines",
    [
        [ERROR, *STEPS[:2]],
        [f"worker.py:7: UserWarning: {ERROR}"],
        [f"[W pool.cc:7] {ERROR}"],
        [f"{ERROR}, retrying"],
        [ERROR, *(f"saved {n}" for n in range(LAST_LINES))],
        [
            "-" * 40,
            "unable to connect to the fabric",
            "on this host. Another one will be used.",
            "-" * 40,
        ],
        ["Exception ignored in: <function Pool.__del__ at 0x7f>", HEADER, *FRAME],
        ["step 1 loss=nan", *STEPS],
        ["[E agent.cc:7] telemetry: StreamError: connection to the collector refused"],
        ['{"level":"E","message":"Metrics will not be exported: RpcError: agent is unreachable"}'],
        [HEADER],
    ],
    ids=[
        "went on",
        "warning",
        "W",
        "retry",
        "long ago",
        "box",
        "finalizer",
        "finite again",
        "telemetry",
        "metrics",
        "header",
    ],
)
def test_words_of_a_job_that_goes_on_mean_nothing(lines: list[str], tmp_path: Path) -> None:
    assert first_code("\n".join(lines), tmp_path) is None


CHECKPOINT = (
    "size mismatch for head.weight: copying a param with shape torch.Size([9]) from checkpoint, "
    "the shape in current model is torch.Size([5])."
)


def test_a_checkpoint_that_is_loaded_all_the_same_is_no_failure(tmp_path: Path) -> None:
    lenient = "The model and loaded state dict do not match exactly"
    assert first_code("\n".join([lenient, "", CHECKPOINT]), tmp_path) is None
    assert first_code(CHECKPOINT, tmp_path) == "failed-checkpoint"


WAITS = [f"Initializing distributed: GLOBAL_RANK: {n}, MEMBER: {n + 1}/4" for n in range(4)]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (WAITS, "hang-rendezvous"),
        (["[rank: 2] Global seed set to 0", WAITS[1], WAITS[0]], "hang-rendezvous"),
        ([*WAITS, HEADER, *FRAME], "failed-rendezvous"),
        (WAITS[:1], None),
        (
            [f"Added key: store_based_barrier_key:1 to store for rank: {n}" for n in range(2)],
            "hang-rendezvous",
        ),
        ([*WAITS, "distributed_backend=nccl"], None),
        ([*WAITS, *STEPS], None),
    ],
    ids=["waits", "interleaved", "cut", "one", "store", "began", "trains"],
)
def test_a_text_that_ends_while_ranks_wait(
    lines: list[str], code: str | None, tmp_path: Path
) -> None:
    assert first_code("\n".join(lines), tmp_path) == code


RULE = "-" * 60


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([RULE, "The call to the fabric failed in a way that", "is unrecoverable.", RULE], "exc"),
        ([RULE, "Two processes of the job are unable to", "reach each other.", RULE], "rendezvous"),
        (["node1:98:98 [0] proxy.cc:72 NCCL WARN wrong state 7"], "nccl-init"),
        (["[node1:3]LookupError: no sample 7"], "exception"),
        (["Exception: no sample 7"], "exception"),
        (["Exception: num_gpus must not be given twice"], "failed-exception"),
        (["trainer: error: argument --lr: bad value"], "exception"),
        (["E0102 03:04:05.678901 47 pool.cc:7] the pool is gone"], "exception"),
        ([f"SampleError{' ' * 30}{HEADER[:-1]}", "<ipython-input-3> in <module>()"], "exception"),
        ([f"OutOfMemoryError{' ' * 9}{HEADER[:-1]}", "Cell In[3], line 7"], "oom-device"),
        (["    assert batch.ready(), batch.name()AssertionError"], "exception"),
        (["ValueErrorValueError: : no sample 7"], "exception"),
        (['File "pool.py", line 7, in save open(p) LookupError: checkpoint 7'], "exception"),
    ],
    ids=[
        "box",
        "box about a connection",
        "level",
        "label",
        "Exception",
        "an argument too many",
        "arguments",
        "E",
        "notebook",
        "type in a notebook",
        "glued to code",
        "several ranks",
        "flattened",
    ],
)
def test_how_an_error_is_printed(lines: list[str], code: str, tmp_path: Path) -> None:
    finding, *_ = findings_of(lines, tmp_path)
    assert code in finding.code
    assert finding.confidence <= 0.6


def test_native_stacks_may_follow_an_error(tmp_path: Path) -> None:
    stack = [f"frame #{n}: c10::call{n}(int) + 0x{n:x} (0x7f5a in libc10.so)" for n in range(90)]
    assert first_code("\n".join([*STEPS, ERROR, *stack]), tmp_path) == "oom-host"


def test_a_telling_error_outranks_how_a_process_ended(tmp_path: Path) -> None:
    ended = "train.sh: line 8:  9864 Aborted                 (core dumped) python train.py"
    assert first_code("\n".join([ERROR, ended]), tmp_path) == "oom-host"
    assert first_code(ended, tmp_path) == "failed-signal"


def test_a_telling_error_outranks_an_exception_that_tells_nothing(tmp_path: Path) -> None:
    raised = [HEADER, *FRAME, "ValueError: could not prepare batch 7"]
    assert first_code("\n".join(raised), tmp_path) == "failed-exception"
    assert (
        first_code("\n".join(["pool.cc:7 ERROR disk is full", *raised]), tmp_path)
        == "failed-disk-full"
    )
    mistake = [HEADER, *FRAME, "NameError: name 'batch' is not defined"]
    assert (
        first_code("\n".join(["pool.cc:7 ERROR disk is full", *mistake]), tmp_path)
        == "failed-exception"
    )


def test_an_error_after_which_tensorflow_logs_more_ended_nothing(tmp_path: Path) -> None:
    error = "2026-01-02 03:04:05.6: E tensorflow/core/pool.cc:7] failed to allocate the GPU pool"
    more = "2026-01-02 03:04:06.6: I tensorflow/core/pool.cc:9] the pool is ready"
    assert first_code(error, tmp_path) == "oom-device"
    assert first_code(f"{error}\n{more}", tmp_path) is None


def test_an_abort_that_completed_successfully_is_no_success(tmp_path: Path) -> None:
    ended = "[node1:3] Local abort after MPI_FINALIZE started completed successfully"
    assert first_code(f"{ERROR}\n{ended}", tmp_path) == "oom-host"


BAR = " 12%|#2   | 12/99 [00:07<00:51,  1.70it/s, loss=0.5]"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([*STEPS, "  7/99 [==>.......] - ETA: 9:04 - loss: 4.3 - accuracy: 0.5Killed"], "killed"),
        ([*STEPS, f"{BAR}Killed"], "killed"),
        ([*STEPS, f"{BAR}Segmentation fault (core dumped)"], "failed-signal"),
        ([*STEPS, f"{BAR}Terminated"], "failed-killed"),
        (["overflow detected, setting loss scale to: 0.0001220703125", HEADER], "loss-nan"),
    ],
    ids=["Keras", "tqdm", "crash", "terminated", "loss scale"],
)
def test_known_endings_in_lines_of_progress(lines: list[str], code: str, tmp_path: Path) -> None:
    finding, *_ = findings_of(lines, tmp_path)
    assert code in finding.code


@pytest.mark.parametrize(
    "lines",
    [
        ["overflow detected, setting loss scale to: 0.5", *STEPS],
        [
            "n1:6:7 [0] NCCL INFO socketPollConnect: connect to 10.0.0.3<5> returned Connection "
            f"refused, retrying ({n}/34) after sleep for {n}00 msec"
            for n in range(1, 34)
        ],
    ],
    ids=["loss scale", "retries"],
)
def test_what_may_still_recover_is_no_failure(lines: list[str], tmp_path: Path) -> None:
    assert first_code("\n".join(lines), tmp_path) is None


LIBRARY = ['  File "/opt/lib/python3.11/site-packages/pool/core.py", line 7, in get', "    check()"]


@every_topic
def test_words_decide_what_an_exception_of_a_library_is_about(
    topic: Signature, tmp_path: Path
) -> None:
    if (raised := RAISED.match(topic.example)) is None:
        return
    said = [*STEPS, HEADER, *FRAME, *LIBRARY, f"RuntimeError: {raised['message']}"]
    finding, *_ = findings_of(said, tmp_path)
    is_said = re.search(topic.pattern, raised["message"])
    assert finding.code == (topic.code if is_said else "failed-exception")


@pytest.mark.parametrize(
    ("kind", "code"), [("ValueError", "failed-exception"), ("DistError", "failed-rendezvous")]
)
def test_a_wrong_argument_of_init_process_group_is_a_mistake_of_the_script(
    kind: str, code: str, tmp_path: Path
) -> None:
    said = [HEADER, *FRAME, *LIBRARY, f"{kind}: TCPStore world size cannot be 0"]
    finding, *_ = findings_of(said, tmp_path)
    assert finding.code == code


def test_an_exception_that_a_library_only_repeats_is_the_users(tmp_path: Path) -> None:
    error = "ValueError: expected device cuda:3: KeyError: 'a'"
    finding, *_ = findings_of([*STEPS, HEADER, *FRAME, *LIBRARY, error], tmp_path)
    assert finding.code == "failed-exception"


@pytest.mark.parametrize("rest", ["; skipping batch", ";\n Skipping batch", ", will retry"])
def test_a_batch_that_was_skipped_is_not_why_another_exception_ended_the_job(
    rest: str, tmp_path: Path
) -> None:
    skipped = f"CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 7.93 GiB total){rest}"
    said = [*STEPS, *skipped.split("\n"), HEADER, *FRAME, "ValueError: no widget 7 in the table"]
    finding, *_ = findings_of(said, tmp_path)
    assert finding.code == "failed-exception"
    finding, *_ = findings_of([*said[:-1], f"RuntimeError: {skipped}"], tmp_path)
    assert finding.code == "oom-device"


def test_a_traceback_without_its_outer_calls_counts_at_the_end(tmp_path: Path) -> None:
    error = "RuntimeError: PytorchStreamWriter failed writing file data/3: file wr"
    said = [*STEPS, HEADER, *LIBRARY, error]
    assert [finding.code for finding in findings_of(said, tmp_path)] == ["failed-disk-full"]
    assert findings_of([*said, *STEPS], tmp_path) == ()


def test_the_type_of_an_exception_may_name_its_library(tmp_path: Path) -> None:
    error = "tensorflow.errors.InternalError: Collective ops 7 failed on its peer"
    finding, *_ = findings_of([*STEPS, error], tmp_path)
    assert finding.code == "failed-tf-collective"
    finding, *_ = findings_of([*STEPS, error.replace("tensorflow.errors.", "")], tmp_path)
    assert finding.code == "failed-exception"


def test_a_search_that_ran_out_of_retries_is_an_error(tmp_path: Path) -> None:
    finding, *_ = findings_of([*STEPS, "[ERROR] cudaMalloc retry failed: out of memory"], tmp_path)
    assert finding.code == "oom-device"
    assert findings_of([*STEPS, "[ERROR] out of memory on the GPU, retrying"], tmp_path) == ()


def test_words_of_an_exception_count_beside_ranks_that_lost_their_connection(
    tmp_path: Path,
) -> None:
    lost = "RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.7]:4711"
    raised = [f"[rank1]: {line}" for line in (HEADER, *FRAME, f"RuntimeError: {ERROR}")]
    waited = [f"[rank0]: {line}" for line in (HEADER, *FRAME, lost)]
    finding, *_ = findings_of([*STEPS, *raised, *waited], tmp_path)
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("oom-host", [1])


PRINTED = [f"loading part {n} of the model" for n in range(4)]
COMMAND = "['/usr/bin/python3', '-u', 'train.py', '--eval_steps', '20', '--fp16'"
REPORT = f"[2026-01-02 03:04:05,678] [ERROR] [launch.py:324:sigkill_handler] {COMMAND}"
TRAIL = [f"n1:6:7 [0] NCCL INFO {file} -> 2" for file in ("include/net.h:25", "transport/net.cc:5")]
CHANNEL = "n1:6:7 [0] NCCL INFO Channel 03/0 : 0[90000] -> 1[1000] [send] via NET/Socket/3"
INSTALLED = "/opt/lib/python3.11/site-packages"


def _cut_in(file: str) -> list[str]:
    return [HEADER, *FRAME, f'  File "{INSTALLED}/{file}", line 7, in get', "    check()"]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([*PRINTED, REPORT], "failed-killed"),
        ([REPORT], "failed-exception"),
        ([*PRINTED, HEADER, *FRAME, "KeyError: 7", REPORT], "failed-exception"),
        ([CHANNEL, *TRAIL], "failed-nccl-init"),
        ([*TRAIL, CHANNEL, CHANNEL, CHANNEL], None),
        ([*TRAIL, *STEPS], None),
        (_cut_in("deepspeed/runtime/config.py"), "failed-deepspeed"),
        ([f"E      {line}" for line in _cut_in("deepspeed/runtime/config.py")], "failed-deepspeed"),
        (_cut_in("deepspeed/runtime/engine.py"), "failed-exception"),
        (_cut_in("torch/distributed/fsdp/api.py"), "failed-fsdp"),
        (_cut_in("torch/distributed/rendezvous.py"), "failed-rendezvous"),
        (_cut_in("torch/serialization.py"), "failed-checkpoint"),
        (["agent: termination is imminent", "systemd-logind: Power key pressed."], "preempted"),
        (["received a spot interruption notice"], "failed-preempted"),
        (["listening for interruption notices"], None),
        (["  (6) INVALID_ARGUMENT:  slice index 7", "0 successful operations."], "tf-invalid"),
        (["INFO: the pool ended; for its traceback,", "see https://example.org/errors.html"], None),
        (["the blas failed: CUBLAS_STATUS_NOT_INITIALIZED ; hostname=node3"], "oom-device"),
    ],
    ids=[
        "silent",
        "launcher",
        "exception",
        "trail",
        "trail before channels",
        "trail before steps",
        "DeepSpeed",
        "pytest",
        "DeepSpeed's engine",
        "FSDP",
        "rendezvous",
        "checkpoint",
        "termination",
        "interruption",
        "listener",
        "gRPC",
        "page about errors",
        "name of a host",
    ],
)
def test_how_a_text_ends(lines: list[str], code: str | None, tmp_path: Path) -> None:
    found = first_code("\n".join(lines), tmp_path)
    assert (code in found) if code and found else found == code


def test_arguments_of_a_command_are_no_progress(tmp_path: Path) -> None:
    assert first_code(f"{ERROR}\nran {COMMAND}]", tmp_path) == "oom-host"


def test_the_next_line_of_the_same_process_is_not_the_rest_of_a_message(tmp_path: Path) -> None:
    """Lines that begin with a host's name in lower case look as if they went on."""
    host = "long-name-of-a-host-13:941:943 [0]"
    refused = f"{host} socket.h:39 NCCL WARN Connect to 10.0.0.3<5> failed : Connection refused"
    retrying = f"{host} NCCL INFO Call to connect returned Connection refused, retrying"
    assert first_code("\n".join([retrying, retrying, refused]), tmp_path) == "failed-nccl-init"
    assert first_code("\n".join([retrying, refused, retrying]), tmp_path) == "failed-nccl-init"


@pytest.mark.parametrize(
    "said",
    [
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}",
        "Overflow detected. Skipping step. Attempted loss scale: {}.0, reducing to {}.0",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {1}.0",
    ],
)
def test_a_loss_scale_that_falls_to_almost_nothing(said: str, tmp_path: Path) -> None:
    def overflows(first: int) -> list[str]:
        return [said.format(first >> n, first >> n + 1) for n in range(3)]

    assert first_code("\n".join(overflows(16)), tmp_path) == "loss-nan"
    assert first_code("\n".join([*overflows(16), *STEPS]), tmp_path) is None
    assert first_code("\n".join(overflows(65536)), tmp_path) is None
