"""A parameter server without its network: messages in, weights out."""

from collections.abc import Iterable

import pytest
import torch
from mgpu_trainers.pytorch.ps import DONE, Server, make_message
from torch import nn

pytestmark = pytest.mark.slow


def model(weight: float = 1.0) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for parameter in made.parameters():
        nn.init.constant_(parameter, weight)
    return made


def learned(gradient: float) -> nn.Sequential:
    """A worker's model after a backward pass."""
    made = model()
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    return made


def counted(made: nn.Sequential) -> torch.Tensor:
    """What its batch norm has."""
    return made[1].get_buffer("running_mean")


class Network:
    """What each worker sends, one after the other; a worker that has nothing left is dead."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, sent: dict[int, list[torch.Tensor]]
    ) -> None:
        self.sent = {worker: iter(letters) for worker, letters in sent.items()}
        self.answers: list[tuple[int, torch.Tensor]] = []
        monkeypatch.setattr(torch.distributed, "recv", self.recv)
        monkeypatch.setattr(torch.distributed, "send", self.send)

    def recv(self, into: torch.Tensor, source: int) -> None:
        found = next(self.sent[source], None)
        if found is None:
            raise RuntimeError("Connection closed by peer")
        into.copy_(found)

    def send(self, numbers: torch.Tensor, target: int) -> None:
        self.answers.append((target, numbers))


def served(server: Server, letters: Iterable[tuple[int, torch.Tensor]]) -> list[float]:
    return [server.learn(worker, sent) for worker, sent in letters]


def test_a_letter_moves_the_weights_and_brings_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, own = learned(2.0), model()
    counted(worker).fill_(7)
    network = Network(
        monkeypatch, {1: [make_message(worker, 0.5, 0.25), make_message(worker, 0.0, DONE)]}
    )
    server = Server(own, torch.optim.SGD(own.parameters(), lr=1.0), 1)
    assert served(server, server.messages()) == [0.5]
    assert all(torch.all(parameter == 1 - 2.0 * 0.25) for parameter in own.parameters())
    assert torch.all(counted(own) == 7)
    ((target, weights),) = network.answers
    assert (target, weights.tolist()) == (1, [0.5] * 15)
    assert (server.updates, server.lost) == (1, set())


def test_a_worker_that_dies_is_missed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [make_message(learned(1.0), loss, 0.1) for loss in (4.0, 3.0)]
    done = make_message(model(), 0.0, DONE)
    Network(monkeypatch, {1: sent[:1], 2: [*sent, done]})
    own = model()
    server = Server(own, torch.optim.SGD(own.parameters(), lr=1.0), 2)
    assert sorted(served(server, server.messages())) == [3.0, 4.0, 4.0]
    assert (server.updates, server.lost, server.learning) == (3, {1}, set())


def test_weights_are_as_old_as_what_others_learned_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Network(monkeypatch, {})
    own = model()
    server = Server(own, torch.optim.SGD(own.parameters(), lr=1.0), 2)
    for worker in (1, 1, 2, 1):
        server.learn(worker, make_message(learned(1.0), 1.0, 0.1))
    # The second worker's gradients are two updates old, then the first's are one.
    assert server.stale == 3
