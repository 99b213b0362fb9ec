"""The link test of preflight, over loopback."""

from __future__ import annotations

import socket

from mgpu_probes.outside.preflight.socket_link import (
    Listener,
    find_address,
    find_free_port,
    measure_link,
)

HERE = "127.0.0.1"


def test_only_the_token_opens_the_link_and_its_end_closes_the_port() -> None:
    listener = Listener(HERE)
    wrong = measure_link(HERE, listener.port, "0" * len(listener.token))
    assert wrong["round_trips"] == []
    assert wrong["trouble"]
    right = measure_link(HERE, listener.port, listener.token)
    assert right["trouble"] is None
    assert min(right["round_trips"]) > 0
    assert min(*right["there"], *right["back"]) > 0
    assert listener.close()["contention"]["seconds"] > 0
    with socket.socket() as late:
        assert late.connect_ex((HERE, listener.port)) != 0


def test_an_address_that_does_not_answer_is_said() -> None:
    assert measure_link(HERE, find_free_port(HERE), "")["trouble"] == "Connection refused"


def test_the_address_of_an_interface() -> None:
    assert find_address("lo") == HERE
    assert find_address("none") is None
