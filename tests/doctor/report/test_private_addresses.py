"""Addresses are hidden in every spelling; text that only looks like one stays."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.report.redaction.addresses import hide_addresses, parse_address
from mgpu_doctor.report.text import clean
from tests.support.loops import over
from tests.support.redacted_reports import redact_words

SPELLINGS = [
    "10.0.1.7",
    "192.168.17.4",
    "8.8.4.4",
    "010.000.001.007",
    "2001:db8::7",
    "2001:DB8::A7",
    "2001:db8:0:0:0:0:0:7",
    "2001:0db8:0000:0000:0000:0000:0000:0007",
    "fe80::1",
    "fe80::1%eth0",
    "fe80::1%25eth0",
    "fd00:1234::5",
    "::ffff:10.0.1.7",
    "::FFFF:10.0.1.7",
    "::ffff:a00:107",
    "64:ff9b::10.0.1.7",
    "::10.0.1.7",
    "00:1a:2b:3c:4d:5e",
    "00-1A-2B-3C-4D-5E",
    "001a.2b3c.4d5e",
    "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:1f:12:34",
]
PLACES = [
    "{}",
    "cannot reach {}.",
    "no route to {}, giving up",
    "[{}]",
    "({})",
    "'{}'",
    "addr={}",
    "addr: {}",
    "peer={};",
    "10.9.9.9,{}",
    "[{}]:29500",
    "{}/24",
    "{}<4711>",
    "eth0:{}<0>",
    "Using [0]eth0:{}<0>",
    "tcp://[{}]:29500",
    "\x1b[31m{}\x1b[0m",
    "node07/{}",
    "host_{}_log",
    "-> {}",
    "{}\nnext",
    "vpn {}\tup",
]


@over("place", PLACES)
@over("address", SPELLINGS)
def test_an_address_is_hidden_in_every_spelling_and_place(address: str, place: str) -> None:
    words = place.format(address)
    shown = redact_words(words)
    core = address.partition("%")[0]
    assert core.casefold() not in shown.casefold()
    assert "address" in shown


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        ("10.0.0.1:29500", "address:29500"),
        ("2001:db8:0:0:0:0:0:1:29500", "address:29500"),
        ("[fe80::1%ib0]:4711", "[address]:4711"),
        ("10.0.0.0/255.255.0.0", "address/address"),
        ("IP 10.0.0.1.29500 > 10.0.0.2.53", "IP address > address"),
        ("7.1.0.10.in-addr.arpa", "address.in-addr.arpa"),
        ("[::ffff:10.0.0.2]:53500, remote=[::ffff:10.0.0.1]:46457", None),
        ("10.0.\u200b0.1", "address"),
        ("[dead::beef]:29500", "[address]:29500"),
        ("dead::beef%eth0 and dead::beef/64", "address and address/64"),
    ],
)
def test_what_is_around_an_address_stays(words: str, hidden: str | None) -> None:
    assert redact_words(words) == (hidden or "[address]:53500, remote=[address]:46457")


@pytest.mark.parametrize(
    "words",
    [
        "127.0.0.1:29500 and 127.0.1.1",
        "[::1]:29500, ::1",
        "bound to 0.0.0.0 and [::]:29500",
        "[::ffff:127.0.0.1]:36359",
        "at 12:34:56, took 1:02:03:04",
        "2026-11-21 19:26:03.416246374",
        "I0000 00:00:1795289643.640298   16263 grpc_server_lib.cc:467]",
        "terminate called after throwing an instance of 'c10::Error'",
        "c10::c10d::ProcessGroup, c10d::Backend, c10::cuda::CUDAException",
        "torch::autograd::Engine::evaluate_function",
        "std::vector<at::Tensor>, add::c10, dead::beef",
        "x[::2], x[1::2], x[10::20], x[::-1], a[1:2:3]",
        "busId 0000:2a:00.0, PCI:00000000:2A:00, 0000:3b:00",
        "GPU-5fa3b1c2-0a1b-2c3d-4e5f-0123456789ab",
        "at 0x7f12a0000000, commit deadbeefcafe, 5fa3b1c2d4e5f60718293a4b5c6d7e8f90a1b2c3",
        "rank 3 on cuda:0, GPU:0, file.py:12",
        "torch 2.13.0, CUDA 12.8, Python 3.11.7",
        "loss 1.25.3, lr=1e-4, 1.2.3.4.5.6",
        "300.1.2.3 is no address, nor is 1.2.3.400",
        "24-05-01-12-30-59",
    ],
)
def test_what_is_no_address_of_a_machine_stays(words: str) -> None:
    assert redact_words(words) == words


@pytest.mark.parametrize(
    "words",
    [
        "NCCL version 2.13.0.1",
        "version 1.2.3.4",
        "torch 2.13.0.1, NCCL 2.21.5.1",
        'version: "1.2.3.4"',
        "pkg==1.2.3.4, other>=2.13.0.1",
        "v1.2.3.4",
        "libfoo.so.1.2.3.4",
        "curand 10.3.2.106",
        "nvidia-curand-cu12==10.3.5.147",
        "nvidia-curand-cu12 10.3.5.147",
    ],
)
def test_versions_stay(words: str) -> None:
    assert redact_words(words) == words


@pytest.mark.parametrize(
    "words",
    [
        "version 192.168.1.4",
        "v10.0.0.1",
        "==10.0.0.1",
        "connect to version 10.0.0.1:80",
        "NCCL 10.0.0.5 is gone",
        "release 172.16.0.9",
        "torch 10.0.0.5",
        "1.2.3.4",
    ],
)
def test_when_in_doubt_it_is_no_version(words: str) -> None:
    assert "address" in redact_words(words)


@given(st.ip_addresses(v=4), st.sampled_from(PLACES))
def test_any_ipv4_address(address: IPv4Address, place: str) -> None:
    shown = hide_addresses(clean(place.format(address)), {})
    everywhere = address.is_loopback or address.is_unspecified
    assert (str(address) in shown) is everywhere


ASSIGNED = st.one_of(
    *(st.ip_addresses(network=net) for net in ("2000::/3", "fc00::/7", "fe80::/10", "ff00::/8"))
)


@given(ASSIGNED, st.sampled_from(PLACES), st.booleans(), st.booleans())
def test_any_ipv6_address(address: IPv6Address, place: str, long: bool, upper: bool) -> None:
    spelling = address.exploded if long else address.compressed
    spelling = spelling.upper() if upper else spelling
    assert spelling not in hide_addresses(clean(place.format(spelling)), {})


@given(st.text(alphabet="0123456789abf:.%/[]v- \n", max_size=80))
def test_nothing_harms_it_and_twice_is_once(words: str) -> None:
    once = hide_addresses(words, {})
    assert hide_addresses(once, {}) == once


def test_a_known_address_has_its_label_in_every_spelling() -> None:
    known = parse_address("2001:db8::7")
    assert known is not None
    labels = {known: "host-3", IPv4Address("10.0.0.1"): "host-4"}
    words = "2001:DB8:0::0007 [2001:db8::7]:80 ::ffff:10.0.0.1 010.0.0.1 10.0.0.2"
    assert hide_addresses(words, labels) == "host-3 [host-3]:80 host-4 host-4 address"
