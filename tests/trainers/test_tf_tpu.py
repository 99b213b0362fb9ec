"""tf-tpu without a TPU: the message. Nothing else of it can be tested without one."""

import subprocess
from typing import Any

import pytest
from mgpu_trainers.tensorflow import tf_tpu


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("…\nValueError: Please provide a TPU Name to connect to.", "try --tpu NAME"),
        (
            "tensorflow.python.framework.errors_impl.NotFoundError: TPUs not found in the cluster. "
            "Failed in initialization: No OpKernel was registered to support Op "
            "'ConfigureDistributedTPU' used by …",
            "this TensorFlow finds no TPU on this machine",
        ),
        ("Traceback …\n\nKeyError: 'zone'\n", "TensorFlow says: KeyError: 'zone'"),
        ("", "does not say why"),
    ],
)
def test_what_tensorflow_says_becomes_one_sentence(message: str, expected: str) -> None:
    assert expected in tf_tpu.explain_failure(message)
    assert "\n" not in tf_tpu.explain_failure(message)


def answers(code: int, said: str) -> Any:
    return lambda command, **_: subprocess.CompletedProcess(command, code, "", said)


def never(command: list[str], timeout: float, **_: object) -> Any:
    raise subprocess.TimeoutExpired(command, timeout)


def test_an_address_that_does_not_answer_is_given_up() -> None:
    assert tf_tpu.missing_tpu("grpc://10.0.0.1", 5, never) == (
        "'grpc://10.0.0.1' did not answer within 5 s"
    )


def test_it_is_there_where_tensorflow_finds_it() -> None:
    assert tf_tpu.missing_tpu("local", 5, answers(0, "")) is None
    assert tf_tpu.missing_tpu("local", 5, answers(1, "RuntimeError: no")) == (
        "TensorFlow says: RuntimeError: no"
    )
